//! Checks the host name by which a client reaches the server. Otherwise, a foreign web page could use a name of its own
//! that resolves to this machine (DNS rebinding).

use std::net::IpAddr;

use axum::http::header::HOST;
use axum::http::request::Parts;

/// Whether a request is for this machine: it has exactly one `Host`, which is `localhost` or a loopback address. An
/// absolute URI in the request line takes precedence over the `Host`, so both are checked.
pub fn is_for_this_machine(parts: &Parts) -> bool {
    let mut hosts = parts.headers.get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return false;
    };
    let in_uri = parts.uri.authority();
    is_local(host.as_bytes()) && in_uri.is_none_or(|name| is_local(name.as_str().as_bytes()))
}

/// Whether `host`, which may have a port, names this machine.
fn is_local(host: &[u8]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else {
        return false;
    };
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port),
        _ => (host, ""),
    };
    if !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return false;
    }
    let address: Option<IpAddr> = match name.strip_prefix('[') {
        Some(rest) => rest
            .strip_suffix(']')
            .and_then(|name| Some(IpAddr::V6(name.parse().ok()?))),
        None => name.parse().ok().map(IpAddr::V4),
    };
    let is_loopback = address.is_some_and(|address| address.to_canonical().is_loopback());
    let name = name.strip_suffix('.').unwrap_or(name);
    is_loopback || name.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_machine_are_known_in_all_forms() {
        for host in [
            "localhost",
            "LocalHost",
            "localhost:8000",
            "localhost:",
            "localhost.",
            "localhost.:80",
            "127.0.0.1",
            "127.0.0.1:65535",
            "127.9.9.9",
            "[::1]",
            "[::1]:8000",
            "[0:0:0:0:0:0:0:1]",
            "[::ffff:127.0.0.1]:80",
        ] {
            assert!(is_local(host.as_bytes()), "{host}");
        }
        for host in [
            "",
            ".",
            ":80",
            "evil.com",
            "evil.com:80",
            "localhost.evil.com",
            "localhost..",
            "notlocalhost",
            "x.localhost",
            "localhost:80:80",
            "localhost:evil.com",
            "localhost:80@evil.com",
            "localhost@evil.com",
            "evil@localhost",
            "127.0.0.1@evil.com",
            "evil.com:80@127.0.0.1",
            "localhost, evil.com",
            "localhost evil.com",
            "localhost/",
            "127.0.0.1.evil.com",
            "127.0.0.1.",
            "127.1",
            "0x7f.0.0.1",
            "2130706433",
            "0.0.0.0",
            "::1",
            "[::1",
            "::1]",
            "[[::1]]",
            "[::1]evil",
            "[::1].evil.com",
            "[127.0.0.1]",
            "[::1]:80]",
            "[::]",
            "[fe80::1]",
            "lоcalhost",
            "localhost\u{0}",
        ] {
            assert!(!is_local(host.as_bytes()), "{host}");
        }
        assert!(!is_local(b"\xe9vil.com"));
        assert!(!is_local(b"localhost\xff"));
    }
}
