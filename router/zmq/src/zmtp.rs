//! One connection in ZMTP 3.0 without authentication (the NULL mechanism, <https://rfc.zeromq.org/spec/23/>), which
//! every libzmq since 4.0 speaks.
//!
//! Each frame's length is checked against [`MAX_FRAME_BYTES`] before memory is reserved for it. The reader has
//! [`READ_TIMEOUT`] for the handshake and for taking one message.

use std::io;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader, BufWriter};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// The longest frame that a reader may send. Its largest are its properties, which name its kind and itself.
pub const MAX_FRAME_BYTES: u64 = 4096;
/// The most frames of a message that a reader may send.
pub const MAX_FRAMES: usize = 8;
/// The longest that a reader may take for the handshake or for one message.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// The bytes that the kernel holds for a reader that does not read. Linux doubles it.
const SEND_BUFFER_BYTES: usize = 256 << 10;

/// A frame's flags.
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// A kind of socket, and the kinds that may connect to it.
pub(crate) type Kind = (&'static str, &'static [&'static str]);
pub(crate) const PUB: Kind = ("PUB", &["SUB", "XSUB"]);
pub(crate) const ROUTER: Kind = ("ROUTER", &["DEALER", "REQ", "ROUTER"]);

const GREETING_BYTES: usize = 64;
/// A signature, version 3.0, and the mechanism's name in 20 bytes from the twelfth on.
const GREETING: [u8; GREETING_BYTES] = {
    let mut bytes = [0; GREETING_BYTES];
    (bytes[0], bytes[9], bytes[10]) = (0xff, 0x7f, 3);
    (bytes[12], bytes[13], bytes[14], bytes[15]) = (b'N', b'U', b'L', b'L');
    bytes
};

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the reader {0}")]
    Protocol(&'static str),
    #[error("the reader announces a frame of {0} bytes; the limit is {MAX_FRAME_BYTES}")]
    LongFrame(u64),
    #[error("the reader took no message for {} s", READ_TIMEOUT.as_secs())]
    TooSlow,
}

/// Shakes hands as a socket of `kind`.
pub(crate) async fn open(stream: TcpStream, kind: Kind) -> Result<(Receiver, Sender), Error> {
    stream.set_nodelay(true)?;
    SockRef::from(&stream).set_send_buffer_size(SEND_BUFFER_BYTES)?;
    let (receiver, sender) = stream.into_split();
    let (mut receiver, mut sender) = (Receiver(BufReader::new(receiver)), Sender(BufWriter::new(sender)));
    let (name, peers) = kind;
    in_time(async {
        sender.0.write_all(&GREETING).await?;
        sender.0.write_all(&header(COMMAND, properties(name).len())).await?;
        sender.0.write_all(&properties(name)).await?;
        Ok(sender.0.flush().await?)
    })
    .await?;
    in_time(receiver.shake_hands(peers)).await?;
    Ok((receiver, sender))
}

async fn in_time<T>(action: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    tokio::time::timeout(READ_TIMEOUT, action).await.unwrap_or(Err(Error::TooSlow))
}

/// Returns the command that tells the kind of this socket.
fn properties(kind: &str) -> Vec<u8> {
    let mut command = b"\x05READY\x0bSocket-Type\0\0\0".to_vec();
    // A kind's name has a few letters.
    command.push(kind.len() as u8);
    command.extend_from_slice(kind.as_bytes());
    command
}

/// Returns the value of `Socket-Type` in such a command.
fn kind_in(command: &[u8]) -> Option<&[u8]> {
    let mut rest = command.strip_prefix(b"\x05READY")?;
    loop {
        let (&length, names) = rest.split_first()?;
        let (name, values) = names.split_at_checked(length.into())?;
        let (length, values) = values.split_first_chunk()?;
        let (value, others) = values.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return Some(value);
        }
        rest = others;
    }
}

fn header(flags: u8, length: usize) -> Vec<u8> {
    match u8::try_from(length) {
        Ok(length) => vec![flags, length],
        Err(_) => [&[flags | LONG], &(length as u64).to_be_bytes()[..]].concat(),
    }
}

/// The half of a connection that receives.
pub struct Receiver<R = OwnedReadHalf>(pub BufReader<R>);

struct Frame {
    flags: u8,
    body: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Receiver<R> {
    /// Receives the greeting and the properties of a reader of one of the kinds.
    pub async fn shake_hands(&mut self, kinds: &[&str]) -> Result<(), Error> {
        let mut greeting = [0; GREETING_BYTES];
        self.0.read_exact(&mut greeting).await?;
        if greeting[0] != 0xff || greeting[9] & 1 == 0 || greeting[10] < GREETING[10] {
            return Err(Error::Protocol("does not speak ZMTP 3"));
        }
        if greeting[12..32] != GREETING[12..32] {
            return Err(Error::Protocol("wants authentication"));
        }
        let Frame { flags, body } = self.frame().await?;
        let is_kind = |kind: &[u8]| kinds.iter().any(|known| known.as_bytes() == kind);
        if flags & COMMAND == 0 || !kind_in(&body).is_some_and(is_kind) {
            return Err(Error::Protocol("is a socket of another kind"));
        }
        Ok(())
    }

    /// Receives a message. Commands are ignored.
    pub async fn message(&mut self) -> Result<Vec<Vec<u8>>, Error> {
        let mut frames = Vec::new();
        loop {
            let Frame { flags, body } = self.frame().await?;
            if flags & COMMAND != 0 {
                continue;
            }
            if frames.len() == MAX_FRAMES {
                return Err(Error::Protocol("sends a message of too many frames"));
            }
            frames.push(body);
            if flags & MORE == 0 {
                return Ok(frames);
            }
        }
    }

    async fn frame(&mut self) -> Result<Frame, Error> {
        // Frames that are buffered already would otherwise be read without a pause.
        tokio::task::coop::consume_budget().await;
        let flags = self.0.read_u8().await?;
        let length =
            if flags & LONG == 0 { self.0.read_u8().await?.into() } else { self.0.read_u64().await? };
        if length > MAX_FRAME_BYTES {
            return Err(Error::LongFrame(length));
        }
        let mut body = vec![0; length as usize];
        self.0.read_exact(&mut body).await?;
        Ok(Frame { flags, body })
    }
}

/// The half of a connection that sends.
pub(crate) struct Sender(BufWriter<OwnedWriteHalf>);

impl Sender {
    /// Sends a message, of which a part may wait for the next one or for [`Self::flush`].
    pub async fn send(&mut self, frames: &[&[u8]]) -> Result<(), Error> {
        in_time(async {
            for (index, frame) in frames.iter().enumerate() {
                let flags = if index + 1 < frames.len() { MORE } else { 0 };
                self.0.write_all(&header(flags, frame.len())).await?;
                self.0.write_all(frame).await?;
            }
            Ok(())
        })
        .await
    }

    pub async fn flush(&mut self) -> Result<(), Error> {
        in_time(async { Ok(self.0.flush().await?) }).await
    }
}
