//! Certificates of ranks, and what TLS knows of one connection.
//!
//! Only TLS 1.3, and nothing is resumed: whoever takes part shows its certificate each time. Promises that a connection
//! is made only where both ends hold a certificate of the authority, and that the name which was dialled stands in the
//! one of the end that was dialled. Never waits: a socket that is not ready is an error of the kind `WouldBlock`.

use std::io::{self, BufRead, ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hawser_common::tls::{InvalidTls, MutualTls};
use hawser_common::{Coded, ErrorCode};
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection};
use thiserror::Error;

/// Read from the socket at once: four records of the largest size.
const INBOUND_BYTES: usize = 64 << 10;

/// Certificates of ranks that cannot be used.
#[derive(Debug, Error)]
pub enum RankTlsError {
    #[error(transparent)]
    Invalid(#[from] InvalidTls),
    #[error("{option} names {path:?}, which cannot be read: {source}")]
    File { option: &'static str, path: PathBuf, source: io::Error },
    #[error("{option} holds nothing that can be used: {reason}")]
    Pem { option: &'static str, reason: String },
    #[error("{option} names {path:?}, which holds nothing that can be used: {reason}")]
    Unusable { option: &'static str, path: PathBuf, reason: String },
    #[error("the certificate or its key cannot be used: {reason}")]
    Certificate { reason: String },
}

impl Coded for RankTlsError {
    fn code(&self) -> ErrorCode {
        ErrorCode::Invalid
    }
}

/// What a rank shows to others and asks of them. Cheap to clone.
#[derive(Clone)]
pub struct RankTls {
    accepts: Arc<ServerConfig>,
    dials: Arc<ClientConfig>,
}

impl RankTls {
    /// Reads the files; `None` where none are named, which means plain text.
    ///
    /// # Errors
    /// [`RankTlsError`] names the option.
    pub fn read(files: &MutualTls) -> Result<Option<Self>, RankTlsError> {
        files.validate()?;
        let (Some(ca), Some(cert), Some(key)) = (&files.ca_file, &files.cert_file, &files.key_file) else {
            return Ok(None);
        };
        let read = |option, path: &Path| {
            std::fs::read(path).map_err(|source| RankTlsError::File { option, path: path.to_owned(), source })
        };
        let parsed =
            Self::from_pem(&read("ca_file", ca)?, &read("cert_file", cert)?, &read("key_file", key)?);
        parsed.map(Some).map_err(|error| match error {
            RankTlsError::Pem { option, reason } => {
                let path =
                    [("ca_file", ca), ("cert_file", cert)].into_iter().find(|(name, _)| *name == option);
                RankTlsError::Unusable { option, path: path.map_or(key, |(_, path)| path).clone(), reason }
            }
            other => other,
        })
    }

    /// From the authorities, the own certificate with what it was signed by, and its key.
    ///
    /// # Errors
    /// [`RankTlsError`]; the option that it names is the one that such a text comes from.
    pub fn from_pem(ca: &[u8], cert: &[u8], key: &[u8]) -> Result<Self, RankTlsError> {
        Self::over(default_provider(), (ca, cert, key))
    }

    /// The same, with the cryptography of `provider`.
    pub(in super::super) fn over(
        provider: CryptoProvider,
        (ca, cert, key): (&[u8], &[u8], &[u8]),
    ) -> Result<Self, RankTlsError> {
        let mut roots = RootCertStore::empty();
        for authority in certificates("ca_file", ca)? {
            roots.add(authority).map_err(unusable)?;
        }
        let (roots, chain) = (Arc::new(roots), certificates("cert_file", cert)?);
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| RankTlsError::Pem { option: "key_file", reason: error.to_string() })?;
        let provider = Arc::new(provider);
        let asked = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
        let mut accepts = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?
            .with_client_cert_verifier(asked.build().map_err(unusable)?)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(unusable)?;
        accepts.send_tls13_tickets = 0;
        accepts.session_storage = Arc::new(NoServerSessionStorage {});
        let mut dials = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(unusable)?;
        dials.resumption = Resumption::disabled();
        Ok(Self { accepts: Arc::new(accepts), dials: Arc::new(dials) })
    }

    /// Of the end that was dialled.
    pub(super) fn accept(&self) -> Result<Session, rustls::Error> {
        Ok(Session::new(Connection::Server(ServerConnection::new(Arc::clone(&self.accepts))?)))
    }

    /// Of the end that dials `name`.
    pub(super) fn dial(&self, name: ServerName<'static>) -> Result<Session, rustls::Error> {
        Ok(Session::new(Connection::Client(ClientConnection::new(Arc::clone(&self.dials), name)?)))
    }
}

impl std::fmt::Debug for RankTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RankTls")
    }
}

fn certificates(option: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, RankTlsError> {
    let bad = |reason: String| RankTlsError::Pem { option, reason };
    let found = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| bad(error.to_string()))?;
    if found.is_empty() { Err(bad("there is no certificate in it".to_owned())) } else { Ok(found) }
}

fn unusable(error: impl std::fmt::Display) -> RankTlsError {
    RankTlsError::Certificate { reason: error.to_string() }
}

/// Whether bytes that begin so are TLS. No greeting in plain text begins so: none is that long.
pub(super) fn is_tls(first: [u8; 3]) -> bool {
    matches!(first, [20..=23, 3, 1..=4])
}

/// TLS over one connection. The socket is an argument: this is only what was read and what is to be written.
#[derive(Debug)]
pub(super) struct Session {
    connection: Connection,
    /// Read from the socket and not looked at yet: `inbound[from..to]`.
    inbound: Box<[u8]>,
    from: usize,
    to: usize,
    /// The other end sends nothing more.
    ended: bool,
}

impl Session {
    fn new(connection: Connection) -> Self {
        let inbound = vec![0; INBOUND_BYTES].into_boxed_slice();
        Self { connection, inbound, from: 0, to: 0, ended: false }
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// The first three bytes that came, once they have, while nothing was made of them.
    pub(super) fn first_bytes(&mut self, stream: &TcpStream) -> io::Result<Option<[u8; 3]>> {
        while self.to < 3 {
            let read = (&*stream).read(&mut self.inbound[self.to..])?;
            if read == 0 {
                self.ended = true;
                return Ok(None);
            }
            self.to += read;
        }
        Ok(Some([self.inbound[0], self.inbound[1], self.inbound[2]]))
    }

    /// Takes one step with what has come.
    pub(super) fn feed(&mut self, stream: &TcpStream) -> io::Result<()> {
        if self.from == self.to {
            (self.from, self.to) = (0, (&*stream).read(&mut self.inbound)?);
            self.ended = self.to == 0;
        }
        // An end is told to the connection as well: what comes before it may be whole or cut.
        let mut rest = &self.inbound[self.from..self.to];
        let taken = self.connection.read_tls(&mut rest)?;
        // Nothing is taken behind a goodbye.
        self.from = if taken == 0 { self.to } else { self.from + taken };
        match self.connection.process_new_packets() {
            Ok(_) => Ok(()),
            Err(error) => {
                // The other end is told what is wrong, if it can be.
                let _ = self.flush(stream);
                Err(io::Error::new(ErrorKind::InvalidData, error))
            }
        }
    }

    /// Whether there is something to read; it is not if the other end has said goodbye.
    pub(super) fn has_plaintext(&mut self, stream: &TcpStream) -> io::Result<bool> {
        loop {
            match self.connection.reader().fill_buf() {
                Ok(bytes) => return Ok(!bytes.is_empty()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.feed(stream)?,
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    let reason = "it closed the connection without a goodbye";
                    return Err(io::Error::new(ErrorKind::UnexpectedEof, reason));
                }
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn read(&mut self, stream: &TcpStream, room: &mut [u8]) -> io::Result<usize> {
        if self.has_plaintext(stream)? { self.connection.reader().read(room) } else { Ok(0) }
    }

    /// Encrypts as much as is buffered at once, and begins to send it. What was encrypted before goes first.
    pub(super) fn write(&mut self, stream: &TcpStream, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        if !self.flush(stream)? {
            return Err(ErrorKind::WouldBlock.into());
        }
        let taken = self.connection.writer().write_vectored(parts)?;
        self.flush(stream)?;
        Ok(taken)
    }

    /// Sends what is encrypted; whether all of it is sent.
    pub(super) fn flush(&mut self, stream: &TcpStream) -> io::Result<bool> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut &*stream) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Says goodbye, so that the other end knows that nothing was cut off.
    pub(super) fn goodbye(&mut self, stream: &TcpStream) {
        self.connection.send_close_notify();
        let _ = self.flush(stream);
    }
}
