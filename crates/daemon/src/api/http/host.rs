// SPDX-License-Identifier: Apache-2.0 OR MIT
//! By which names the metrics are asked for.
//!
//! A page in a browser reaches addresses that only this machine does, if its site's name is made to
//! mean one of them (DNS rebinding); the request's `Host` then is that name. So by TCP a request
//! names an address, `localhost`, or a name that the configuration has.

use std::net::IpAddr;

use hyper::HeaderMap;
use hyper::header::HOST;

/// Whether a request may be answered. Requests of HTTP/1.0 may have no `Host`: no browser sends
/// them.
pub(super) fn is_known(headers: &HeaderMap, known: &[String]) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (None, _) => true,
        (Some(host), None) => host.to_str().is_ok_and(|host| is_name(host, known)),
        (Some(_), Some(_)) => false,
    }
}

fn is_name(host: &str, known: &[String]) -> bool {
    // `[::1]:9464`, `127.0.0.1:9464`, `localhost`.
    if let Some((address, port)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return is_port(port) && address.parse::<IpAddr>().is_ok();
    }
    let (name, port) = host.split_at(host.find(':').unwrap_or(host.len()));
    let is = |known: &str| known.eq_ignore_ascii_case(name);
    is_port(port)
        && (name.parse::<IpAddr>().is_ok()
            || is("localhost")
            || known.iter().any(|known| is(known)))
}

/// Empty, or a colon and a number.
fn is_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    // Promise P260 (socket): By TCP the metrics answer requests for an address, for `localhost`
    // and for a name of `metrics.hosts`, and refuse all others: a page in a browser cannot read
    // them by a name of its own that leads to this machine.
    #[test]
    fn addresses_localhost_and_configured_names_are_answered() {
        let names = ["node1.example".to_owned()];
        for (host, known) in [
            ("127.0.0.1", true),
            ("127.0.0.1:9464", true),
            ("[::1]:9464", true),
            ("[::1]", true),
            ("LocalHost:9464", true),
            ("node1.example:9464", true),
            ("Node1.Example", true),
            ("x", false),
            ("evil.example:9464", false),
            ("127.0.0.1.evil.example", false),
            ("localhost.evil.example", false),
            ("node1.example.evil.example", false),
            ("127.0.0.1:port", false),
            ("[::1", false),
            ("", false),
        ] {
            assert_eq!(is_name(host, &names), known, "{host}");
        }
        let mut headers = HeaderMap::new();
        assert!(is_known(&headers, &names), "HTTP/1.0");
        headers.append(HOST, HeaderValue::from_static("localhost"));
        assert!(is_known(&headers, &names));
        headers.append(HOST, HeaderValue::from_static("localhost"));
        assert!(!is_known(&headers, &names), "which of the two?");
    }
}
