//! One connection between two ranks: plain text, or TLS in which both have shown their certificates.
//!
//! Ranks meet over it (whole messages, by a deadline) and then exchange frames over it (whatever moves at once). Promises
//! that an end which is set up for TLS never takes or sends plain text, and that two ends of which only one is are told
//! so, each. Never waits but while ranks meet.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hawser_common::cause::{in_words, of_certificate};
use hawser_common::clock::{Clock, Tick};
use rustls::AlertDescription;
use rustls::pki_types::ServerName;
use thiserror::Error;

use super::ready;
use super::tls::{RankTls, Session, is_tls};

/// Why two ranks cannot talk to each other.
#[derive(Debug, Error)]
pub enum ConnectionError {
    #[error(
        "it talks TLS, and this end plain text: certificates between ranks are for all of them, or for none"
    )]
    TalksTls,
    #[error(
        "it talks plain text, and this end TLS: certificates between ranks are for all of them, or for none"
    )]
    TalksPlainText,
    #[error("its certificate is not accepted here: {reason}")]
    Untrusted { reason: String },
    #[error("it does not accept this rank's certificate: {reason}")]
    NotTrusted { reason: String },
    #[error("{name:?} is neither a name nor an address that could stand in a certificate")]
    Name { name: String },
    #[error("TLS: {reason}")]
    Tls { reason: String },
    #[error("it was silent for {waited:?}")]
    Silent { waited: Duration },
    #[error("it closed the connection")]
    Closed,
    #[error(transparent)]
    Io(io::Error),
}

impl ConnectionError {
    /// Whether it stays so until somebody changes how a rank is set up.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::TalksTls
            | Self::TalksPlainText
            | Self::Untrusted { .. }
            | Self::NotTrusted { .. }
            | Self::Name { .. } => true,
            Self::Tls { .. } | Self::Silent { .. } | Self::Closed | Self::Io(_) => false,
        }
    }
}

impl From<rustls::Error> for ConnectionError {
    fn from(error: rustls::Error) -> Self {
        use AlertDescription as Alert;
        match error {
            rustls::Error::InvalidCertificate(reason) => {
                Self::Untrusted { reason: of_certificate(&reason.to_string()) }
            }
            rustls::Error::NoCertificatesPresented => Self::Untrusted { reason: "it shows none".to_owned() },
            // By these the other end says what it thinks of a certificate; the last two, also of a signature by a key
            // that is not its own, and of none at all.
            rustls::Error::AlertReceived(
                alert @ (Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA
                | Alert::AccessDenied
                | Alert::DecryptError
                | Alert::CertificateRequired),
            ) => Self::NotTrusted { reason: of_certificate(&format!("{alert:?}")) },
            other => Self::Tls { reason: in_words(&other.to_string()) },
        }
    }
}

impl From<io::Error> for ConnectionError {
    fn from(error: io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(inner) => inner.clone().into(),
            None => Self::Io(error),
        }
    }
}

/// One end of a connection.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    /// A rank's thread and its abort handles take turns; nobody waits while holding it.
    tls: Option<Box<Mutex<Session>>>,
}

/// What may be waited for: until when, and how long that was from the beginning.
struct Patience {
    clock: Clock,
    waited: Duration,
}

impl Patience {
    fn new(waited: Duration) -> Self {
        Self { clock: Clock::system(), waited }
    }

    /// Waits until the socket has something to read or, with `writes`, takes bytes.
    fn wait(&self, stream: &TcpStream, writes: bool) -> Result<(), ConnectionError> {
        let Tick(now) = self.clock.now();
        match self.waited.saturating_sub(now) {
            Duration::ZERO => Err(ConnectionError::Silent { waited: self.waited }),
            left => Ok(ready::wait([(stream, writes)].into_iter(), left)?),
        }
    }
}

impl Connection {
    /// Plain text over a connected stream.
    ///
    /// # Errors
    /// A stream that cannot be set up.
    pub fn plain(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream, tls: None })
    }

    /// Of the end that was dialled. With `tls` the other end must show a certificate, within `patience`.
    ///
    /// # Errors
    /// [`ConnectionError`].
    pub fn accept(
        stream: TcpStream,
        tls: Option<&RankTls>,
        patience: Duration,
    ) -> Result<Self, ConnectionError> {
        let session = tls.map(RankTls::accept).transpose()?;
        Self::over(stream, session, patience)
    }

    /// Of the end that has dialled `host`, a name or an IP address. With `tls` the other end must show a certificate of
    /// that name, within `patience`.
    ///
    /// # Errors
    /// [`ConnectionError`].
    pub fn dial(
        (stream, host): (TcpStream, &str),
        tls: Option<&RankTls>,
        patience: Duration,
    ) -> Result<Self, ConnectionError> {
        let session = tls.map(|tls| {
            let bad = |_| ConnectionError::Name { name: host.to_owned() };
            let name = ServerName::try_from(host).map_err(bad)?;
            Ok::<_, ConnectionError>(tls.dial(name.to_owned())?)
        });
        Self::over(stream, session.transpose()?, patience)
    }

    fn over(
        stream: TcpStream,
        session: Option<Session>,
        patience: Duration,
    ) -> Result<Self, ConnectionError> {
        let Self { stream, .. } = Self::plain(stream)?;
        let tls = match session {
            None => None,
            Some(mut session) => {
                handshake(&mut session, &stream, &Patience::new(patience))?;
                Some(Box::new(Mutex::new(session)))
            }
        };
        Ok(Self { stream, tls })
    }

    /// Whether `first`, which came in plain text, is the beginning of TLS.
    #[must_use]
    pub fn is_tls(first: [u8; 3]) -> bool {
        is_tls(first)
    }

    /// Sends all of `bytes` within `patience`.
    ///
    /// # Errors
    /// [`ConnectionError`]; the connection is of no use then.
    pub fn send(&self, mut bytes: &[u8], patience: Duration) -> Result<(), ConnectionError> {
        let patience = Patience::new(patience);
        while !bytes.is_empty() {
            match self.write_vectored(&[IoSlice::new(bytes)]) {
                Ok(0) => return Err(ConnectionError::Closed),
                Ok(sent) => bytes = &bytes[sent..],
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => patience.wait(&self.stream, true)?,
                    ErrorKind::Interrupted => {}
                    _ => return Err(self.said_before(error)),
                },
            }
        }
        while !self.flush().map_err(|error| self.said_before(error))? {
            patience.wait(&self.stream, true)?;
        }
        Ok(())
    }

    /// What the other end said before it left, if that is why nothing can be sent any more: it may not accept a
    /// certificate, which its end of the handshake finds out last.
    fn said_before(&self, error: io::Error) -> ConnectionError {
        match self.read(&mut [0]) {
            Err(said) if said.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) => said.into(),
            _ => error.into(),
        }
    }

    /// Fills `room` within `patience`.
    ///
    /// # Errors
    /// [`ConnectionError`]; the connection is of no use then.
    pub fn receive(&self, mut room: &mut [u8], patience: Duration) -> Result<(), ConnectionError> {
        let patience = Patience::new(patience);
        while !room.is_empty() {
            match self.read(room) {
                Ok(0) => return Err(ConnectionError::Closed),
                Ok(read) => room = &mut room[read..],
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => patience.wait(&self.stream, false)?,
                    ErrorKind::Interrupted => {}
                    _ => return Err(error.into()),
                },
            }
        }
        Ok(())
    }

    /// Whether the other end has not closed the connection.
    #[must_use]
    pub fn is_open(&self) -> bool {
        let found = match self.session() {
            None => self.stream.peek(&mut [0; 1]).map(|bytes| bytes > 0),
            Some(mut session) => session.has_plaintext(&self.stream),
        };
        found.unwrap_or_else(|error| error.kind() == ErrorKind::WouldBlock)
    }

    /// Reads what is there; an error of the kind `WouldBlock` where nothing is. 0: the other end has closed it.
    pub(super) fn read(&self, room: &mut [u8]) -> io::Result<usize> {
        match self.session() {
            None => (&self.stream).read(room),
            Some(mut session) => session.read(&self.stream, room),
        }
    }

    /// Takes what it can of `parts`; an error of the kind `WouldBlock` where that is nothing. [`Connection::flush`] says
    /// when it is sent.
    pub(super) fn write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.session() {
            None => (&self.stream).write_vectored(parts),
            Some(mut session) => session.write(&self.stream, parts),
        }
    }

    /// Sends what was taken; whether all of it is sent.
    pub(super) fn flush(&self) -> io::Result<bool> {
        match self.session() {
            None => Ok(true),
            Some(mut session) => session.flush(&self.stream),
        }
    }

    /// Sends what it can of `last`, which may be cut, and a goodbye. `None`: others may be inside a frame, so that
    /// nothing can be said. Then nothing more goes either way.
    pub(super) fn end(&self, last: Option<&[u8]>) {
        if let Some(last) = last {
            let _ = self.write_vectored(&[IoSlice::new(last)]);
            if let Some(mut session) = self.session() {
                session.goodbye(&self.stream);
            }
        }
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Says goodbye; the other end may still be heard.
    #[cfg(test)]
    pub(in super::super) fn end_sending(&self) {
        if let Some(mut session) = self.session() {
            session.goodbye(&self.stream);
        }
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    fn session(&self) -> Option<MutexGuard<'_, Session>> {
        // What a panic left behind is as good as any other state: the bytes in it are checked.
        self.tls.as_ref().map(|tls| tls.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl AsRawFd for Connection {
    fn as_raw_fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
}

fn handshake(session: &mut Session, stream: &TcpStream, patience: &Patience) -> Result<(), ConnectionError> {
    let mut seen = false;
    loop {
        let flushed = session.flush(stream)?;
        if flushed && !session.is_handshaking() {
            return Ok(());
        }
        let step = match seen {
            true => session.feed(stream),
            false => match session.first_bytes(stream) {
                Ok(Some(first)) if !is_tls(first) => return Err(ConnectionError::TalksPlainText),
                other => other.map(|first| seen = first.is_some()),
            },
        };
        match step {
            Err(error) if error.kind() == ErrorKind::WouldBlock => patience.wait(stream, !flushed)?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
            Ok(()) if session.has_ended() => return Err(ConnectionError::Closed),
            Ok(()) => {}
        }
    }
}
