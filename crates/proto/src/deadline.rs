//! Deadlines as gRPC carries them: how long the caller still waits, in the `grpc-timeout` header.

use std::time::Duration;

use tonic::metadata::MetadataMap;

/// Longest deadline that is honoured; longer ones are cut to it.
pub const MAX_DEADLINE: Duration = Duration::from_secs(24 * 3600);

const HEADER: &str = "grpc-timeout";

/// The caller's deadline as a duration from now. `None` without one, or where the header is not legal: at most
/// eight digits and one of `H M S m u n`, as in the gRPC specification of HTTP/2 transport.
#[must_use]
pub fn deadline(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.get(HEADER)?.to_str().ok()?;
    parse(text).map(|time| time.min(MAX_DEADLINE))
}

fn parse(text: &str) -> Option<Duration> {
    let unit = text.chars().last()?;
    let digits = text.strip_suffix(unit)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        'H' => Some(Duration::from_secs(count * 3600)),
        'M' => Some(Duration::from_secs(count * 60)),
        'S' => Some(Duration::from_secs(count)),
        'm' => Some(Duration::from_millis(count)),
        'u' => Some(Duration::from_micros(count)),
        'n' => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_bounds_and_nonsense() {
        let check = |text: &str, expected: Option<Duration>| {
            let mut map = MetadataMap::new();
            map.insert(HEADER, text.parse().unwrap());
            assert_eq!(deadline(&map), expected, "{text:?}");
        };
        check("5S", Some(Duration::from_secs(5)));
        check("250m", Some(Duration::from_millis(250)));
        check("17u", Some(Duration::from_micros(17)));
        check("9n", Some(Duration::from_nanos(9)));
        check("2M", Some(Duration::from_secs(120)));
        check("99999999H", Some(MAX_DEADLINE));
        for text in ["", "S", "5", "5s", "-5S", "123456789S", "1.5S", "5SS", "+5S"] {
            check(text, None);
        }
        assert_eq!(deadline(&MetadataMap::new()), None);
    }

    #[test]
    fn what_tonic_writes_is_read_back() {
        for time in [Duration::from_millis(1), Duration::from_secs(90), Duration::from_secs(7200)] {
            let mut request = tonic::Request::new(());
            request.set_timeout(time);
            assert_eq!(deadline(request.metadata()), Some(time));
        }
    }
}
