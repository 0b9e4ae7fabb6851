//! Which certificates a server shows and a client trusts, as a configuration names them. Only names and rules: files
//! are read where a server or a connection is made.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{Coded, ErrorCode};

/// A server's side. Without a certificate it talks plain text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerTls {
    /// The server's certificate, with what it was signed by below the authority, in PEM.
    pub cert_file: Option<PathBuf>,
    /// Its key, in PEM.
    pub key_file: Option<PathBuf>,
    /// Authorities of the clients' certificates, in PEM: a client without one is refused. Not set: clients show none.
    pub client_ca_file: Option<PathBuf>,
}

/// A client's side. Without an authority it talks plain text, to `http://` addresses only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClientTls {
    /// Authorities that a server's certificate is checked against, in PEM.
    pub ca_file: Option<PathBuf>,
    /// The client's own certificate and its key, in PEM, where the server asks for them.
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
}

/// Both sides of connections among equals, each of which shows its certificate to the other. Without files they talk
/// plain text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MutualTls {
    /// Authorities that the others' certificates are checked against, in PEM.
    pub ca_file: Option<PathBuf>,
    /// The own certificate, with what it was signed by below the authority, in PEM.
    pub cert_file: Option<PathBuf>,
    /// Its key, in PEM.
    pub key_file: Option<PathBuf>,
}

/// Files that make no sense together.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{given} needs {missing} as well")]
pub struct InvalidTls {
    pub given: &'static str,
    pub missing: &'static str,
}

impl Coded for InvalidTls {
    fn code(&self) -> ErrorCode {
        ErrorCode::Invalid
    }
}

fn needs(given: (&'static str, bool), missing: (&'static str, bool)) -> Result<(), InvalidTls> {
    if given.1 && !missing.1 { Err(InvalidTls { given: given.0, missing: missing.0 }) } else { Ok(()) }
}

impl ServerTls {
    /// # Errors
    /// [`InvalidTls`]: a certificate without its key, or the other way round, or clients' authorities alone.
    pub fn validate(&self) -> Result<(), InvalidTls> {
        let cert = ("cert_file", self.cert_file.is_some());
        let key = ("key_file", self.key_file.is_some());
        needs(cert, key)?;
        needs(key, cert)?;
        needs(("client_ca_file", self.client_ca_file.is_some()), cert)
    }

    /// Whether the server talks TLS.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.cert_file.is_some()
    }
}

impl ClientTls {
    /// # Errors
    /// [`InvalidTls`]: a certificate without its key, or the other way round, or either without an authority.
    pub fn validate(&self) -> Result<(), InvalidTls> {
        let cert = ("cert_file", self.cert_file.is_some());
        let key = ("key_file", self.key_file.is_some());
        needs(cert, key)?;
        needs(key, cert)?;
        needs(cert, ("ca_file", self.ca_file.is_some()))
    }

    /// Whether connections are encrypted.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.ca_file.is_some()
    }
}

impl MutualTls {
    /// # Errors
    /// [`InvalidTls`]: some of the three files, and not all.
    pub fn validate(&self) -> Result<(), InvalidTls> {
        let ca = ("ca_file", self.ca_file.is_some());
        let cert = ("cert_file", self.cert_file.is_some());
        let key = ("key_file", self.key_file.is_some());
        needs(ca, cert)?;
        needs(cert, key)?;
        needs(key, ca)
    }

    /// Whether connections are encrypted.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.ca_file.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_refused() {
        let some = || Some(PathBuf::from("x.pem"));
        assert_eq!(ServerTls::default().validate(), Ok(()));
        assert_eq!(ClientTls::default().validate(), Ok(()));
        let check = |tls: ServerTls, missing| assert_eq!(tls.validate().unwrap_err().missing, missing);
        check(ServerTls { cert_file: some(), ..Default::default() }, "key_file");
        check(ServerTls { key_file: some(), ..Default::default() }, "cert_file");
        check(ServerTls { client_ca_file: some(), ..Default::default() }, "cert_file");
        let check = |tls: ClientTls, missing| assert_eq!(tls.validate().unwrap_err().missing, missing);
        check(ClientTls { cert_file: some(), ..Default::default() }, "key_file");
        check(ClientTls { key_file: some(), ..Default::default() }, "cert_file");
        check(ClientTls { cert_file: some(), key_file: some(), ca_file: None }, "ca_file");
    }

    #[test]
    fn of_mutual_tls_all_files_are_there_or_none() {
        for given in 0..8u8 {
            let file = |bit: u8| (given & bit != 0).then(|| PathBuf::from("x.pem"));
            let tls = MutualTls { ca_file: file(1), cert_file: file(2), key_file: file(4) };
            let whole = given == 0 || given == 7;
            assert_eq!(tls.validate().is_ok(), whole, "{tls:?}");
            if let Err(InvalidTls { given, missing }) = tls.validate() {
                let is_set = |name| match name {
                    "ca_file" => tls.ca_file.is_some(),
                    "cert_file" => tls.cert_file.is_some(),
                    _ => tls.key_file.is_some(),
                };
                assert!(is_set(given) && !is_set(missing), "{tls:?}: {given} needs {missing}");
            }
        }
    }
}
