// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Traces: which loans came when, how large, and for how long.
//!
//! The format of prezero's own is CSV with a heading: `arrival,size,lifetime` and, if it is known,
//! `node`. Arrival and lifetime are seconds, sizes are written as everywhere (`8G`), an empty
//! lifetime never ends, an empty node leaves the place to the placement. Other formats are read as
//! their makers publish them; none of those traces is shipped.
//!
//! | format | what it is | what of it is read |
//! |---|---|---|
//! | `openb` | pods of Alibaba's `cluster-trace-gpu-v2023` | `creation_time`, `deletion_time`, `memory_mib` of pods that were scheduled |
//! | `azure` | `vmtable.csv` of the Azure public dataset V2, which has no heading | columns 4 and 5 (created, deleted, in seconds) and 11 (memory in GiB, `>64` as 64) |
//! | `swf` | the standard workload format of batch systems | fields 2 to 5 (submitted, waited, ran, processors) and the memory of each processor: 7, else 10 (KiB) |
//! | `sacct` | `sacct -P -a --format=JobID,Start,End,ReqMem,AllocCPUS,AllocNodes` of Slurm | jobs, without their steps |
//! | `alibaba-2025` | instances of Alibaba's `cluster-trace-gpu-v2025` | `creation_time`, `deletion_time`, `memory_request` (GiB) of instances that began within the trace |
//! | `prometheus` | the JSON of Prometheus' range query of the daemon's histograms | see [`prometheus`] |
//! | `watch` | what `prezero watch --json` printed on this host | each rise of `lent_pages` as a loan of that size, each fall as the end of the loan that fits best |

mod batch;
mod file;
mod prometheus;

use std::collections::BTreeMap;
use std::io::{BufRead, Read};
use std::path::Path;

use clap::ValueEnum;
use serde::Deserialize;
use units::{Bytes, Domain, PageSize};

use file::TraceText;

/// One loan of a trace. Its times are numbers of at least 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ask {
    /// Seconds from the trace's start.
    pub arrival: f64,
    /// Its size.
    pub bytes: Bytes,
    /// In seconds; infinite if it never ends.
    pub lifetime: f64,
    /// Where it must be, if it must.
    pub node: Option<usize>,
}

/// How a trace is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    /// prezero's own: `arrival,size,lifetime[,node]`
    #[default]
    Csv,
    /// Alibaba's cluster-trace-gpu-v2023, the list of pods
    Openb,
    /// The Azure public dataset V2, vmtable.csv
    Azure,
    /// Alibaba's cluster-trace-gpu-v2025, disaggregated_DLRM_trace.csv
    #[value(name = "alibaba-2025")]
    Alibaba2025,
    /// The standard workload format of batch systems
    Swf,
    /// `sacct -P --format=JobID,Start,End,ReqMem,AllocCPUS,AllocNodes` of Slurm
    Sacct,
    /// The JSON of a range query of `{__name__=~"prezero_loan_(bytes|seconds)_bucket"}`
    Prometheus,
    /// What `prezero watch --json` printed
    Watch,
}

impl Ask {
    /// `amount` units of memory, for a lifetime from `arrival` on.
    ///
    /// # Errors
    /// Times below 0, or more bytes than a u64 has.
    fn new(arrival: f64, (amount, unit): (u64, u64), lifetime: f64) -> Result<Self, String> {
        let times = [arrival, lifetime];
        if !arrival.is_finite() || times.iter().any(|time| time.is_nan() || *time < 0.0) {
            return Err(format!(
                "arrival {arrival} and lifetime {lifetime} must be seconds of at least 0"
            ));
        }
        let bytes = amount.checked_mul(unit).ok_or_else(|| {
            format!("{amount} times {} are more bytes than there can be", Bytes(unit))
        })?;
        Ok(Self { arrival, bytes: Bytes(bytes), lifetime, node: None })
    }
}

/// The loans of a file, and what of it was left out.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadTrace {
    /// In the order of arrival, the first at 0.
    pub asks: Vec<Ask>,
    /// The lines or loans that were left out, and why.
    pub left_out: Option<String>,
}

/// Reads a trace, in the order of arrival and counted from its first one.
///
/// # Errors
/// The line that cannot be read, and why.
pub fn read(path: &Path, format: Format) -> Result<ReadTrace, String> {
    let TraceText { text, is_cut } = file::read(path)?;
    let ReadTrace { asks, left_out } = read_text(&text, is_cut, format)?;
    if asks.is_empty() {
        return Err("there is no loan in it".to_owned());
    }
    Ok(ReadTrace { asks: ordered(asks), left_out })
}

/// The loans of a text. Where it is cut and its last line cannot be read, that is left out.
fn read_text(text: &str, is_cut: bool, format: Format) -> Result<ReadTrace, String> {
    let all = |text: &str| match format {
        Format::Watch => watch(text.as_bytes()),
        Format::Prometheus => prometheus::loans(text.as_bytes()),
        Format::Alibaba2025 => alibaba_2025(text.as_bytes()),
        format => Ok(ReadTrace { asks: parse(text.as_bytes(), format)?, left_out: None }),
    };
    let whole = all(text);
    if whole.is_ok() || !is_cut || format == Format::Prometheus {
        return whole;
    }
    let Some((before, _)) = text.trim_end_matches('\n').rsplit_once('\n') else { return whole };
    let number = before.lines().count() + 1;
    // An error in an earlier line is that line's.
    let Ok(read) = all(&format!("{before}\n")) else { return whole };
    let left_out = Some(format!("line {number} is cut, and was left out"));
    Ok(ReadTrace { left_out, ..read })
}

/// The loans of a trace as it has them.
///
/// # Errors
/// The line that is not a loan.
pub fn parse(text: impl BufRead, format: Format) -> Result<Vec<Ask>, String> {
    match format {
        Format::Csv => own(text).map_err(hinted),
        Format::Openb => openb(text),
        Format::Azure => azure(text),
        Format::Swf => batch::swf(text),
        Format::Sacct => batch::sacct(text),
        Format::Alibaba2025 => alibaba_2025(text).map(|read| read.asks),
        Format::Prometheus => prometheus::loans(text).map(|read| read.asks),
        Format::Watch => watch(text).map(|read| read.asks),
    }
}

/// A trace that is none of prezero's own may be another's.
fn hinted(why: String) -> String {
    format!(
        "{why}; prezero's own format has the heading arrival,size,lifetime, and --format says \
         others: openb, azure, alibaba-2025, swf, sacct, prometheus, watch"
    )
}

/// In the order of arrival, the first at 0.
pub fn ordered(mut asks: Vec<Ask>) -> Vec<Ask> {
    asks.sort_by(|a, b| a.arrival.total_cmp(&b.arrival));
    let first = asks.first().map_or(0.0, |ask| ask.arrival);
    asks.iter_mut().for_each(|ask| ask.arrival -= first);
    asks
}

/// Writes a trace in prezero's own format.
///
/// # Errors
/// Those of `out`.
pub fn write(asks: &[Ask], out: impl std::io::Write) -> csv::Result<()> {
    let mut out = csv::Writer::from_writer(out);
    out.write_record(["arrival", "size", "lifetime", "node"])?;
    for Ask { arrival, bytes, lifetime, node } in asks {
        let lifetime = if lifetime.is_finite() { format!("{lifetime:.3}") } else { String::new() };
        let node = node.map(|node| node.to_string()).unwrap_or_default();
        // A rounded size would read back as another one.
        let size = Some(bytes.to_string()).filter(|size| size.parse() == Ok(*bytes));
        let size = size.unwrap_or_else(|| bytes.0.to_string());
        out.write_record([format!("{arrival:.3}"), size, lifetime, node])?;
    }
    out.flush()?;
    Ok(())
}

fn own(file: impl Read) -> Result<Vec<Ask>, String> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Line {
        arrival: f64,
        size: String,
        lifetime: Option<f64>,
        node: Option<usize>,
    }
    lines(csv::Reader::from_reader(file), |line: Line| {
        // `16 GiB`, too.
        let size: String = line.size.split_whitespace().collect();
        let bytes = size.parse::<Bytes>().map_err(|error| error.to_string())?;
        let lifetime = line.lifetime.unwrap_or(f64::INFINITY);
        Ok(Some(Ask { node: line.node, ..Ask::new(line.arrival, (bytes.0, 1), lifetime)? }))
    })
}

fn openb(file: impl Read) -> Result<Vec<Ask>, String> {
    #[derive(Deserialize)]
    struct Pod {
        memory_mib: u64,
        creation_time: f64,
        deletion_time: Option<f64>,
        scheduled_time: Option<f64>,
    }
    lines(csv::Reader::from_reader(file), |pod: Pod| {
        if pod.scheduled_time.is_none() || pod.memory_mib == 0 {
            return Ok(None);
        }
        let lifetime = pod.deletion_time.map_or(f64::INFINITY, |end| end - pod.creation_time);
        Ask::new(pod.creation_time, (pod.memory_mib, 1 << 20), lifetime).map(Some)
    })
}

fn alibaba_2025(file: impl Read) -> Result<ReadTrace, String> {
    #[derive(Deserialize)]
    struct Instance {
        memory_request: f64,
        creation_time: Option<f64>,
        deletion_time: Option<f64>,
    }
    let mut before = 0_usize;
    let asks = lines(csv::Reader::from_reader(file), |of: Instance| {
        // Some have no creation, and are deleted: they were there before the trace began.
        let Some(arrival) = of.creation_time else {
            before += 1;
            return Ok(None);
        };
        if of.memory_request.is_nan() || of.memory_request <= 0.0 {
            return Ok(None);
        }
        let lifetime = of.deletion_time.map_or(f64::INFINITY, |end| end - arrival);
        let mib = batch::whole(of.memory_request * 1024.0);
        Ask::new(arrival, (mib, 1 << 20), lifetime).map(Some)
    })?;
    let left_out = (before > 0).then(|| {
        format!("{before} instances began before the trace, at no known time, and were left out")
    });
    Ok(ReadTrace { asks, left_out })
}

fn azure(file: impl Read) -> Result<Vec<Ask>, String> {
    let reader = csv::ReaderBuilder::new().has_headers(false).from_reader(file);
    lines(reader, |columns: Vec<String>| {
        let at = |number: usize| {
            columns.get(number - 1).ok_or_else(|| format!("there is no column {number}"))
        };
        let seconds = |number| {
            let text = at(number)?;
            text.parse::<f64>().map_err(|_| format!("column {number}: `{text}` is no time"))
        };
        let memory = at(11)?.trim_start_matches('>');
        let gib: u64 = memory.parse().map_err(|_| format!("column 11: `{memory}` is no size"))?;
        let (arrival, end) = (seconds(4)?, seconds(5)?);
        let lifetime = if end > arrival { end - arrival } else { f64::INFINITY };
        if gib == 0 {
            return Ok(None);
        }
        Ask::new(arrival, (gib, 1 << 30), lifetime).map(Some)
    })
}

/// Every line of a table; an error has its number.
fn lines<T: for<'de> Deserialize<'de>>(
    mut reader: csv::Reader<impl Read>,
    mut ask: impl FnMut(T) -> Result<Option<Ask>, String>,
) -> Result<Vec<Ask>, String> {
    let mut asks = Vec::new();
    for line in reader.deserialize() {
        let line: T = line.map_err(|error| error.to_string())?;
        let number = asks.len() + 1;
        asks.extend(ask(line).map_err(|why| format!("loan {number}: {why}"))?);
    }
    Ok(asks)
}

/// Loans as the levels of lent pages show them. Empty lines and those of a missing daemon tell
/// nothing. A last line that was cut, as by a full disk or the end of the watch, is left out.
fn watch(file: impl BufRead) -> Result<ReadTrace, String> {
    #[derive(Deserialize)]
    struct PlanReport {
        time: f64,
        levels: Vec<wire::Level>,
    }
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Line {
        Levels(PlanReport),
        Missing {
            #[serde(rename = "error")]
            _error: String,
        },
    }
    let mut asks: Vec<Ask> = Vec::new();
    let mut before: BTreeMap<Domain, u64> = BTreeMap::new();
    let mut nodes: Vec<units::Node> = Vec::new();
    let mut left_out = None;
    let mut lines = file.lines().enumerate().peekable();
    while let Some((number, line)) = lines.next() {
        let wrong = |why: &dyn std::fmt::Display| format!("line {}: {why}", number + 1);
        let line = line.map_err(|error| wrong(&error))?;
        if line.trim().is_empty() {
            continue;
        }
        let report = match serde_json::from_str(&line) {
            Ok(Line::Levels(report)) => report,
            Ok(Line::Missing { .. }) => continue,
            Err(_) if lines.peek().is_none() && is_cut(&line) => {
                left_out = Some(format!("line {} is cut, and was left out", number + 1));
                break;
            }
            // The enum's own error names neither place nor field.
            Err(_) => match serde_json::from_str::<PlanReport>(&line) {
                Ok(report) => report,
                Err(error) => return Err(wrong(&error)),
            },
        };
        for level in report.levels {
            let Some(page_size) = PageSize::new(level.page_size.bytes()) else { continue };
            let node = units::Node(level.node.0);
            if !nodes.contains(&node) {
                nodes.push(node);
            }
            let place = nodes.iter().position(|known| *known == node);
            let lent = level.lent_pages.bytes(page_size);
            let was = before.insert(Domain { node, page_size }, lent.0).unwrap_or(lent.0);
            let open = |ask: &Ask| ask.node == place && ask.lifetime.is_infinite();
            if lent.0 > was {
                let ask = Ask::new(report.time, (lent.0 - was, 1), f64::INFINITY);
                asks.push(Ask { node: place, ..ask.map_err(|why| wrong(&why))? });
            } else if lent.0 < was {
                let fits = |ask: &Ask| ask.bytes.0.abs_diff(was - lent.0);
                let ended =
                    (0..asks.len()).filter(|at| open(&asks[*at])).min_by_key(|at| fits(&asks[*at]));
                if let Some(ask) = ended.map(|at| &mut asks[at]) {
                    let lifetime = report.time - ask.arrival;
                    let ended = Ask::new(ask.arrival, (ask.bytes.0, 1), lifetime);
                    *ask = Ask { node: ask.node, ..ended.map_err(|why| wrong(&why))? };
                }
            }
        }
    }
    Ok(ReadTrace { asks, left_out })
}

/// Whether a line is the beginning of an object.
fn is_cut(line: &str) -> bool {
    let ended = serde_json::from_str::<serde::de::IgnoredAny>(line);
    line.starts_with('{') && ended.is_err_and(|error| error.is_eof())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_trace_is_read_again() {
        let asks = vec![
            Ask { arrival: 0.0, bytes: Bytes(8 << 30), lifetime: 12.5, node: None },
            Ask { arrival: 1.5, bytes: Bytes(2 << 20), lifetime: f64::INFINITY, node: Some(3) },
            Ask { arrival: 2.0, bytes: Bytes(8193 << 20), lifetime: 1.0, node: None },
        ];
        let mut text = Vec::new();
        write(&asks, &mut text).unwrap();
        assert_eq!(own(&text[..]).unwrap(), asks, "{}", String::from_utf8_lossy(&text));
    }

    #[test]
    fn a_wrong_line_is_refused_with_its_number() {
        for (text, says) in [
            ("arrival,size,lifetime\n0,8Q,1\n", "loan 1: `8Q` is not a size"),
            ("arrival,size,lifetime\n0,8G,1\n-1,8G,1\n", "loan 2: arrival -1"),
            ("arrival,size,lifetime\n0,8G,NaN\n", "loan 1: arrival 0 and lifetime NaN"),
            ("arrival,size,lifetime\ninf,8G,1\n", "loan 1: arrival inf"),
            ("arrival,size,lifetime\nsoon,8G,1\n", "line: 2"),
            ("arrival,size,live\n0,8G,1\n", "live"),
        ] {
            let why = own(text.as_bytes()).unwrap_err();
            assert!(why.contains(says), "{text:?}: {why}");
        }
    }

    #[test]
    fn no_format_has_loans_that_cannot_be() {
        let pods = "memory_mib,creation_time,deletion_time,scheduled_time\n";
        let level = |time: f64, lent: u64| {
            serde_json::json!({ "time": time, "levels": [{
                "node": 0, "page_bytes": 2 << 20, "ready_pages": 0, "zeroable_pages": 0,
                "zeroing_pages": 0, "lent_pages": lent }] })
        };
        let backwards = format!("{}\n{}\n{}\n", level(5.0, 0), level(6.0, 1), level(4.0, 0));
        for (format, text, says) in [
            (
                Format::Openb,
                format!("{pods}17592186044416,0,1,0\n"),
                "loan 1: 17592186044416 times 1M",
            ),
            (Format::Openb, format!("{pods}1,9,1,9\n"), "loan 1: arrival 9 and lifetime -8"),
            (
                Format::Azure,
                "v,s,d,0,1,9,1,5,U,4,17179869184\n".to_owned(),
                "loan 1: 17179869184 times 1G",
            ),
            (Format::Watch, backwards, "line 3: arrival 6 and lifetime -2"),
        ] {
            let why = parse(text.as_bytes(), format).unwrap_err();
            assert!(why.contains(says), "{text:?}: {why}");
        }
    }

    #[test]
    fn traces_of_others_are_read_as_they_are_published() {
        let pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n\
                    a,6000,8192,1,1000,,LS,Running,100,160,101\n\
                    b,6000,8192,1,1000,,LS,Pending,110,170,\n";
        let asks = ordered(openb(pods.as_bytes()).unwrap());
        assert_eq!(asks, [Ask { arrival: 0.0, bytes: Bytes(8 << 30), lifetime: 60.0, node: None }]);
        let instances = "instance_sn,role,app_name,memory_request,creation_time,scheduled_time,deletion_time\n\
                         a,HN,x,120.0,,,\n\
                         b,CN,x,320.0,100.0,101.0,160.0\n\
                         c,CN,x,0.5,130.0,,\n";
        let read = alibaba_2025(instances.as_bytes()).unwrap();
        let found: Vec<_> =
            read.asks.iter().map(|ask| (ask.arrival, ask.bytes.0 >> 20, ask.lifetime)).collect();
        assert_eq!(found, [(100.0, 320 << 10, 60.0), (130.0, 512, f64::INFINITY)]);
        assert!(read.left_out.unwrap().starts_with("1 instances began before the trace"));
        let vms = "v1,s,d,0,300,9.9,1.2,5.5,Delay-insensitive,4,32\nv2,s,d,600,600,9.9,1.2,5.5,Unknown,>24,>64\n";
        let asks = azure(vms.as_bytes()).unwrap();
        let sizes: Vec<_> = asks.iter().map(|ask| (ask.bytes.0 >> 30, ask.lifetime)).collect();
        assert_eq!(sizes, [(32, 300.0), (64, f64::INFINITY)]);
    }

    // Promise P385 (operator): A trace that is cut at its end is planned from all of its whole
    // lines, and one line says which was left out.
    #[test]
    fn last_line_that_is_cut_is_left_out_of_every_format() {
        for (format, text) in [
            (Format::Csv, "arrival,size,lifetime\n0,8G,1\n1,8"),
            (Format::Openb, "memory_mib,creation_time,deletion_time,scheduled_time\n8,1,2,1\n8,1"),
            (Format::Azure, "v,s,d,0,1,9,1,5,U,4,16\nv,s,d,0,1,9,1"),
            (Format::Swf, "1 10 5 60 4 -1 1048576 4 -1 2097152 1 1 1 1 1 1 -1 -1\n2 20 -"),
            (Format::Sacct, "JobID|Start|End|ReqMem\n1|5|9|1G\n2|2026-11-2"),
            (Format::Alibaba2025, "memory_request,creation_time,deletion_time\n8,1,2\n8,1"),
        ] {
            let read = read_text(text, true, format).unwrap();
            assert_eq!(read.asks.len(), 1, "{format:?}");
            let line = text.lines().count();
            let says = format!("line {line} is cut, and was left out");
            assert_eq!(read.left_out, Some(says), "{format:?}");
            assert!(read_text(text, false, format).is_err(), "{format:?}: nothing says it is cut");
            // An error before the end is no cut.
            let broken =
                text.replacen('8', "x", 9).replacen(" 5 ", " x ", 1).replacen("|5|", "|x|", 1);
            assert!(format == Format::Azure || read_text(&broken, true, format).is_err());
        }
        let whole = "arrival,size,lifetime\n0,8 GiB,1\n1, 1.5 gb ,1";
        let read = read_text(whole, true, Format::Csv).unwrap();
        assert_eq!((read.asks.len(), read.left_out), (2, None), "only its newline is missing");
        assert_eq!(read.asks[1].bytes, Bytes(3 << 29));
    }

    #[test]
    fn levels_that_were_watched_become_loans() {
        let level = |time: f64, lent: u64| {
            serde_json::json!({ "time": time, "levels": [{
                "node": 0, "page_bytes": 2 << 20, "ready_pages": 0, "zeroable_pages": 0,
                "zeroing_pages": 0, "lent_pages": lent }] })
            .to_string()
        };
        // The first 5 pages were lent before the watch began.
        let seen =
            [level(10.0, 5), level(11.0, 9), level(12.0, 41), level(20.0, 9), level(30.0, 5)];
        let ReadTrace { asks, left_out } = watch(seen.join("\n").as_bytes()).unwrap();
        assert_eq!(left_out, None);
        let loans: Vec<_> =
            asks.iter().map(|ask| (ask.arrival, ask.bytes.0 >> 21, ask.lifetime)).collect();
        assert_eq!(loans, [(11.0, 4, 19.0), (12.0, 32, 8.0)]);
        // Two days in one file, a restart of the daemon, and a disk that was full at the end.
        let missing = r#"{"error":"no daemon at /run/prezero/io.prezero"}"#;
        let torn = [&seen[..2], &[String::new(), missing.to_owned()], &seen[2..]].concat();
        let text = format!("{}\n{}", torn.join("\n"), &seen[0][..seen[0].len() / 2]);
        let read = watch(text.as_bytes()).unwrap();
        assert_eq!(read.asks, asks);
        assert_eq!(read.left_out.as_deref(), Some("line 8 is cut, and was left out"));
        let broken = format!("{}\n{}\n", &seen[0][..40], seen[1]);
        assert!(watch(broken.as_bytes()).unwrap_err().starts_with("line 1: EOF"));
        let strange = format!("{}\n{{\"time\":1}}", seen[0]);
        assert!(watch(strange.as_bytes()).unwrap_err().starts_with("line 2: missing field"));
    }
}
