//! How servers listen and clients connect: TLS as configured, and the same keepalive at every hop.
//!
//! The one place where certificates are read. An address with `https` is never talked to in plain text, and where a
//! client has an authority, an address with `http` is refused, so that a wrong address cannot switch encryption off.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use hawser_common::cause::innermost;
use hawser_common::tls::{ClientTls, InvalidTls, ServerTls};
use hawser_common::{Coded, ErrorCode, Keepalive};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use thiserror::Error;
use tokio_rustls::TlsConnector;
use tonic::codegen::http::Uri;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity, Server, ServerTlsConfig};

use crate::link::{Limits, Peer, Reach};

/// How HTTP/2 is named in a TLS handshake.
pub(crate) const HTTP2: &[u8] = b"h2";
/// Longest that a TLS handshake may take.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

/// Certificates that cannot be used.
#[derive(Debug, Error)]
pub enum TlsError {
    #[error(transparent)]
    Invalid(#[from] InvalidTls),
    #[error("{option} names {path:?}, which cannot be read: {source}")]
    File { option: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{option} names {path:?}, which holds no {holds} in PEM")]
    NotPem { option: &'static str, path: PathBuf, holds: &'static str },
    #[error("cert_file {cert:?} and key_file {key:?} cannot be used together: {cause}")]
    Certificate { cert: PathBuf, key: PathBuf, cause: String },
    #[error("the certificates cannot be used: {cause}")]
    Unusable { cause: String },
}

impl Coded for TlsError {
    fn code(&self) -> ErrorCode {
        ErrorCode::Invalid
    }
}

/// An address that cannot be connected to.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DialError {
    #[error("{address:?} is no address; write it as http://HOST:PORT or https://HOST:PORT")]
    Address { address: String },
    #[error("{address} needs TLS, and no authority is configured to check its certificate; set ca_file")]
    NoAuthority { address: String },
    #[error("{address} is plain text, and this end is configured for TLS; write it with https://")]
    Plain { address: String },
    #[error("the certificates for {address} cannot be used: {cause}")]
    Certificate { address: String, cause: String },
}

impl Coded for DialError {
    fn code(&self) -> ErrorCode {
        ErrorCode::Invalid
    }
}

/// A server with the keepalive and, where it is on, TLS.
///
/// # Errors
/// [`TlsError`].
pub fn server(tls: &ServerTls, keepalive: Keepalive) -> Result<Server, TlsError> {
    tls.validate()?;
    let server = Server::builder()
        .http2_keepalive_interval(Some(keepalive.interval))
        .http2_keepalive_timeout(Some(keepalive.timeout));
    let (Some(cert), Some(key)) = (&tls.cert_file, &tls.key_file) else { return Ok(server) };
    let mut config = ServerTlsConfig::new().identity(identity(cert, key)?).timeout(HANDSHAKE_LIMIT);
    if let Some(ca) = &tls.client_ca_file {
        config = config.client_ca_root(Certificate::from_pem(read("client_ca_file", ca, CERTIFICATE)?));
    }
    server.tls_config(config).map_err(|error| {
        let (cert, key, cause) = (cert.clone(), key.clone(), innermost(&error));
        TlsError::Certificate { cert, key, cause }
    })
}

/// How this process connects: what it trusts, what it shows, and the keepalive. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Dial {
    tls: Option<Trust>,
    keepalive: Keepalive,
}

/// The same certificates for both ways to connect: tonic's channels, and links.
#[derive(Clone, Debug)]
struct Trust {
    channels: ClientTlsConfig,
    links: Arc<ClientConfig>,
}

impl Dial {
    /// Reads the files that `tls` names, and tries them: what cannot be used is told here and not by the first call.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn new(tls: &ClientTls, keepalive: Keepalive) -> Result<Self, TlsError> {
        tls.validate()?;
        let Some(ca) = &tls.ca_file else { return Ok(Self { tls: None, keepalive }) };
        let authorities = read("ca_file", ca, CERTIFICATE)?;
        let mut channels = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&authorities))
            .timeout(HANDSHAKE_LIMIT);
        let files = tls.cert_file.as_ref().zip(tls.key_file.as_ref());
        let own = match files {
            Some((cert, key)) => {
                let own = (read("cert_file", cert, CERTIFICATE)?, read("key_file", key, KEY)?);
                channels = channels.identity(Identity::from_pem(&own.0, &own.1));
                Some(own)
            }
            None => None,
        };
        let tried = Endpoint::from_static("https://localhost").tls_config(channels.clone());
        let tried = tried.map_err(|error| innermost(&error));
        let links =
            tried.and_then(|_| trusting(&authorities, own.as_ref()).map_err(|error| innermost(&*error)));
        match (links, files) {
            (Ok(links), _) => Ok(Self { tls: Some(Trust { channels, links: Arc::new(links) }), keepalive }),
            (Err(cause), Some((cert, key))) => {
                Err(TlsError::Certificate { cert: cert.clone(), key: key.clone(), cause })
            }
            (Err(cause), None) => Err(TlsError::Unusable { cause }),
        }
    }

    /// An endpoint for `address`, which must be a URI with a host.
    ///
    /// # Errors
    /// [`DialError`].
    pub fn endpoint(&self, address: &str) -> Result<Endpoint, DialError> {
        let (endpoint, tls) = self.place(address)?;
        let endpoint = match tls {
            Some(trust) => endpoint.tls_config(trust.channels.clone()).map_err(|error| {
                DialError::Certificate { address: address.to_owned(), cause: innermost(&error) }
            })?,
            None => endpoint,
        };
        Ok(endpoint
            .tcp_nodelay(true)
            .http2_keep_alive_interval(self.keepalive.interval)
            .keep_alive_timeout(self.keepalive.timeout)
            .keep_alive_while_idle(true))
    }

    /// Whom a [`Link`](crate::Link) connects to, over what `reach` opens.
    ///
    /// # Errors
    /// [`DialError`].
    pub fn peer(&self, address: &str, limits: Limits, reach: Reach) -> Result<Peer, DialError> {
        let (endpoint, tls) = self.place(address)?;
        let uri = endpoint.uri().clone();
        let tls = match tls {
            Some(trust) => {
                let host = uri.host().unwrap_or_default();
                // An IPv6 address stands in brackets in a URI, and without them in a certificate.
                let name = host.trim_start_matches('[').trim_end_matches(']').to_owned();
                let name = ServerName::try_from(name)
                    .map_err(|_| DialError::Address { address: address.to_owned() })?;
                Some((TlsConnector::from(Arc::clone(&trust.links)), name))
            }
            None => None,
        };
        Ok(Peer { uri, tls, keepalive: self.keepalive, limits, reach })
    }

    /// The address, if it is one and may be talked to, and what is trusted there; `None` for plain text.
    fn place(&self, address: &str) -> Result<(Endpoint, Option<&Trust>), DialError> {
        let bad = || DialError::Address { address: address.to_owned() };
        let endpoint = Endpoint::from_shared(address.to_owned()).map_err(|_| bad())?;
        if !is_place(endpoint.uri()) {
            return Err(bad());
        }
        let address = || address.to_owned();
        match (endpoint.uri().scheme_str(), &self.tls) {
            (Some("https"), Some(trust)) => Ok((endpoint, Some(trust))),
            (Some("https"), None) => Err(DialError::NoAuthority { address: address() }),
            (Some("http"), Some(_)) => Err(DialError::Plain { address: address() }),
            (Some("http"), None) => Ok((endpoint, None)),
            _ => Err(bad()),
        }
    }
}

/// What trusts these authorities and shows the own certificate, if any. All in PEM.
fn trusting(
    authorities: &[u8],
    own: Option<&(Vec<u8>, Vec<u8>)>,
) -> Result<ClientConfig, Box<dyn std::error::Error>> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(authorities) {
        roots.add(authority?)?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match own {
        Some((cert, key)) => {
            let chain = CertificateDer::pem_slice_iter(cert).collect::<Result<Vec<_>, _>>()?;
            config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key)?)?
        }
        None => config.with_no_client_auth(),
    };
    config.alpn_protocols.push(HTTP2.to_vec());
    Ok(config)
}

/// What a file holds, and the word for it in PEM.
type Holds = (&'static str, &'static str);
const CERTIFICATE: Holds = ("certificate", "CERTIFICATE-----");
const KEY: Holds = ("private key", "PRIVATE KEY-----");

fn identity(cert: &Path, key: &Path) -> Result<Identity, TlsError> {
    Ok(Identity::from_pem(read("cert_file", cert, CERTIFICATE)?, read("key_file", key, KEY)?))
}

/// A file in PEM. A file of something else would be taken for one without entries, and every connection would fail.
fn read(option: &'static str, path: &Path, (holds, mark): Holds) -> Result<Vec<u8>, TlsError> {
    let text =
        std::fs::read(path).map_err(|source| TlsError::File { option, path: path.to_owned(), source })?;
    let is_there = text.windows(mark.len()).any(|window| window == mark.as_bytes());
    if is_there { Ok(text) } else { Err(TlsError::NotPem { option, path: path.to_owned(), holds }) }
}

/// Whether this is a host, and a port if any: no user, no path, and no port that would be read as another one.
fn is_place(uri: &Uri) -> bool {
    let Some(authority) = uri.authority() else { return false };
    let (host, port) = (authority.host(), authority.port_u16());
    let whole = port.map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
    let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
    !host.is_empty() && port != Some(0) && authority.as_str() == whole && is_bare
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_dials_take_plain_addresses_only() {
        let dial = Dial::default();
        assert!(dial.endpoint("http://127.0.0.1:7070").is_ok());
        let https = dial.endpoint("https://router:1").unwrap_err();
        assert!(matches!(https, DialError::NoAuthority { .. }), "{https}");
        assert!(dial.endpoint("http://[::1]:7070/").is_ok() && dial.endpoint("http://router").is_ok());
        let wrong =
            ["http://h:99999", "http://h:0", "http://h:", "http://h:1/path", "http://me@h:1", "http://h:1?x"];
        let none = ["", "http://", "a b", "::", "ftp://h:1", "127.0.0.1:7070"];
        for bad in none.into_iter().chain(wrong) {
            let error = dial.endpoint(bad).unwrap_err();
            assert!(matches!(error, DialError::Address { .. }), "{bad:?}: {error}");
        }
    }

    #[test]
    fn files_that_are_missing_or_no_certificates_are_named() {
        let tls = ClientTls { ca_file: Some("nowhere.pem".into()), ..ClientTls::default() };
        let error = Dial::new(&tls, Keepalive::default()).unwrap_err().to_string();
        assert!(error.contains("ca_file names \"nowhere.pem\""), "{error}");
        let path = PathBuf::from(env!("CARGO_MANIFEST_PATH"));
        let (cert_file, key_file) = (Some(path.clone()), Some(path.clone()));
        let tls = ServerTls { cert_file, key_file, client_ca_file: None };
        let error = server(&tls, Keepalive::default()).unwrap_err().to_string();
        assert!(error.starts_with("cert_file names") && error.contains("holds no certificate"), "{error}");
        let tls = ClientTls { ca_file: Some(path), ..ClientTls::default() };
        let error = Dial::new(&tls, Keepalive::default()).unwrap_err().to_string();
        assert!(error.starts_with("ca_file names") && error.contains("holds no certificate"), "{error}");
    }

    #[test]
    fn what_is_pem_and_still_no_pair_is_refused_before_the_first_connection() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).unwrap();
            Some(folder.path().join(name))
        };
        let cert_file = write("cert.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        let key_file = write("key.pem", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n");
        let tls = ClientTls {
            ca_file: cert_file.clone(),
            cert_file: cert_file.clone(),
            key_file: key_file.clone(),
        };
        let dial = Dial::new(&tls, Keepalive::default()).map(drop);
        let tls = ServerTls { cert_file, key_file, client_ca_file: None };
        let listen = server(&tls, Keepalive::default()).map(drop);
        for refused in [dial, listen] {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains("cert.pem") && error.contains("key.pem"), "{error}");
        }
    }
}
