//! Why there is no connection, for people: the cause that says most, and what TLS says of it in plain words.
//!
//! The one place that knows TLS's own names, such as `UnknownIssuer`. They are read from texts, so that nobody needs the
//! library for its types; a text that is not known stays as it is.

use std::error::Error;

const THEIRS: &str = "invalid peer certificate: ";
const ALERT: &str = "received fatal alert: ";

/// What is wrong with a certificate: TLS's name for it, or how its text begins, and the same in words. Most are found by
/// the end that looks at it; those from `UnknownCA` on are alerts, by which the other end is told.
const CERTIFICATE: &[(&str, &str)] = &[
    ("UnknownIssuer", "it is signed by none of the authorities that are trusted"),
    ("certificate expired", "it has expired"),
    ("Expired", "it has expired"),
    ("certificate not valid yet", "it is not valid yet; do the clocks of both ends agree?"),
    ("NotValidYet", "it is not valid yet; do the clocks of both ends agree?"),
    ("NotValidForName", "it is not for the address that was called"),
    ("Revoked", "it was revoked"),
    ("BadSignature", "it is not signed by the trusted authority of that name"),
    ("BadEncoding", "it cannot be read"),
    ("InvalidPurpose", "it is not for this end of a connection"),
    ("UnknownCA", "it is signed by none of the authorities that are trusted"),
    ("CertificateExpired", "it has expired, or is not valid yet"),
    ("CertificateRequired", "none was shown"),
    ("CertificateRevoked", "it was revoked"),
    ("CertificateUnknown", "it does not say why"),
    ("UnsupportedCertificate", "it is not for this end of a connection"),
    ("BadCertificate", "it does not say why"),
    ("AccessDenied", "it does not say why"),
    ("DecryptError", "it is not signed by the trusted authority of that name, or its key is another one's"),
];

/// Whole messages of TLS.
const MESSAGES: &[(&str, &str)] = &[
    ("peer sent no certificates", "the other end shows no certificate, and this one asks for it"),
    (
        "received corrupt message of type InvalidContentType",
        "the other end talks plain text, and this one TLS",
    ),
];

/// The cause that says most, in words: libraries' outer texts are such as "transport error".
#[must_use]
pub fn innermost(error: &dyn Error) -> String {
    let mut deepest = error;
    while let Some(next) = deepest.source() {
        deepest = next;
    }
    in_words(&deepest.to_string())
}

/// A message, or what TLS means by it.
#[must_use]
pub fn in_words(message: &str) -> String {
    if let Some((_, name)) = message.split_once(THEIRS) {
        return format!("the other end's certificate is not accepted here: {}", of_certificate(name));
    }
    let alert = message.split_once(ALERT).and_then(|(_, name)| known(name));
    if let Some(reason) = alert {
        return format!("the other end does not accept this end's certificate: {reason}");
    }
    let whole = MESSAGES.iter().find(|(said, _)| message.contains(said));
    whole.map_or(message, |(_, words)| words).to_owned()
}

/// What is wrong with a certificate, of which TLS says `name`.
#[must_use]
pub fn of_certificate(name: &str) -> String {
    match (known(name), name.strip_prefix("certificate not valid for name ")) {
        (Some(words), _) => words.to_owned(),
        (None, Some(names)) => format!("it is not for {}", plain(names)),
        (None, None) => name.to_owned(),
    }
}

fn known(name: &str) -> Option<&'static str> {
    let is_it = |known: &str| {
        let rest = name.strip_prefix(known);
        rest.is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
    };
    CERTIFICATE.iter().find(|(known, _)| is_it(known)).map(|(_, words)| *words)
}

/// Names of a certificate without their types.
fn plain(names: &str) -> String {
    let names = names.replace("certificate is", "it is").replace("DnsName(", "").replace("IpAddress(", "");
    names.replace(" (according to its subjectAltName extension)", "").replace(')', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tls_says_of_certificates_is_told_in_words_and_by_which_end() {
        let here = "the other end's certificate is not accepted here: ";
        let there = "the other end does not accept this end's certificate: ";
        for (said, end, words) in [
            ("invalid peer certificate: UnknownIssuer", here, "it is signed by none of the authorities"),
            (
                "invalid peer certificate: certificate expired: verification time 9 (UNIX), but certificate is not \
                 valid after 8 (1 seconds ago)",
                here,
                "it has expired",
            ),
            (
                "invalid peer certificate: certificate not valid for name \"a.example\"; certificate is only valid \
                 for DnsName(\"b.example\") or IpAddress(10.0.0.1)",
                here,
                "it is not for \"a.example\"; it is only valid for \"b.example\" or 10.0.0.1",
            ),
            ("invalid peer certificate: ExpiredRevocationList", here, "ExpiredRevocationList"),
            ("error: invalid peer certificate: Other(x)", here, "Other(x)"),
            (
                "invalid peer certificate: BadSignature",
                here,
                "not signed by the trusted authority of that name",
            ),
            ("received fatal alert: UnknownCA", there, "it is signed by none of the authorities"),
            ("tcp: received fatal alert: CertificateRequired", there, "none was shown"),
            ("received fatal alert: CertificateExpired", there, "it has expired"),
            ("peer sent no certificates", "the other end shows no certificate", ""),
            ("received corrupt message of type InvalidContentType", "the other end talks plain text", "TLS"),
        ] {
            let told = in_words(said);
            assert!(told.starts_with(end) && told[end.len()..].contains(words), "{said:?} became {told:?}");
        }
        for other in ["", "connection refused", "received fatal alert: HandshakeFailure"] {
            assert_eq!(in_words(other), other, "what is not known stays");
        }
    }

    #[derive(Debug, thiserror::Error)]
    #[error("transport error")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn the_innermost_cause_says_most() {
        let said = innermost(&Outer(std::io::Error::other("invalid peer certificate: BadEncoding")));
        assert_eq!(said, "the other end's certificate is not accepted here: it cannot be read");
    }
}
