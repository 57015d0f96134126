// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What machine this is: nodes, pools, preemption.

use std::{fs, io};

use vm_guest::{Event, Node, Pool};

const NODES: &str = "/sys/devices/system/node";

pub(crate) fn booted() -> io::Result<Event> {
    let uptime = fs::read_to_string("/proc/uptime")?;
    let seconds = uptime.split_whitespace().next().and_then(|text| text.parse::<f64>().ok());
    let mut nodes = Vec::new();
    for node in node_numbers()? {
        let dir = format!("{NODES}/node{node}");
        let meminfo = fs::read_to_string(format!("{dir}/meminfo"))?;
        let total = meminfo.lines().find(|line| line.contains("MemTotal:"));
        let memory_kib = total
            .and_then(|line| line.split_whitespace().nth(3))
            .and_then(|text| text.parse().ok())
            .unwrap_or(0);
        let cpus = fs::read_to_string(format!("{dir}/cpulist"))?.trim().to_owned();
        nodes.push(Node { node, memory_kib, cpus });
    }
    Ok(Event::Booted {
        release: rustix::system::uname().release().to_string_lossy().into_owned(),
        uptime_ms: seconds
            .map_or(0, |s| std::time::Duration::from_secs_f64(s).as_millis())
            .try_into()
            .unwrap_or(u64::MAX),
        preempt: preempt(),
        nodes,
    })
}

/// `none (full) voluntary` or so, from the scheduler's debug file.
fn preempt() -> String {
    let text = fs::read_to_string("/sys/kernel/debug/sched/preempt").unwrap_or_default();
    text.split_once('(')
        .and_then(|(_, rest)| rest.split_once(')'))
        .map_or_else(|| "unknown".to_owned(), |(model, _)| model.to_owned())
}

fn node_numbers() -> io::Result<Vec<u32>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(NODES)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("node"));
        numbers.extend(number.and_then(|text| text.parse::<u32>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Every hugetlb pool that holds a page.
pub(crate) fn pools() -> io::Result<Vec<Pool>> {
    let mut pools = Vec::new();
    for node in node_numbers()? {
        // A kernel without hugetlb has no such directory.
        let Ok(sizes) = fs::read_dir(format!("{NODES}/node{node}/hugepages")) else { continue };
        for size in sizes {
            let size = size?;
            let name = size.file_name().to_string_lossy().into_owned();
            let page_kib = name
                .strip_prefix("hugepages-")
                .and_then(|rest| rest.strip_suffix("kB"))
                .and_then(|text| text.parse().ok())
                .unwrap_or(0);
            let pages = fs::read_to_string(size.path().join("nr_hugepages"))?;
            let pages = pages.trim().parse().unwrap_or(0);
            if pages > 0 {
                pools.push(Pool { node, page_kib, pages });
            }
        }
    }
    pools.sort_by_key(|pool| (pool.node, pool.page_kib));
    Ok(pools)
}
