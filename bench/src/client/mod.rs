//! An HTTP client that reads streams and notes when their events arrive.

pub mod address;
pub mod error;
pub mod event;
pub mod failure;
pub mod sse;
pub mod tls;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER, SERVER};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use self::address::Address;
use self::error::ClientError;
use self::event::{Event, Usage};
use self::failure::{Failure, Kind};
use self::sse::Splitter;
use self::tls::Trust;

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of an answer that is no stream.
const MAX_ANSWER_BYTES: usize = 4 << 20;

type Sender = SendRequest<Full<Bytes>>;

/// A client of one server. Connections are kept for later requests.
pub struct Client {
    pub address: Address,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    host: HeaderValue,
    authorization: Option<HeaderValue>,
    timeout: Duration,
    idle: Arc<Mutex<Vec<Sender>>>,
}

/// A complete stream.
#[derive(Debug, Default, PartialEq)]
pub struct Answer {
    /// When each event with output arrived. There is at least one.
    pub arrivals: Vec<Instant>,
    pub usage: Option<Usage>,
    /// The output, if it is kept.
    pub text: String,
    /// The `server` header.
    pub server: Option<String>,
}

impl Client {
    pub fn new(
        address: Address,
        trust: &Trust,
        key: Option<&str>,
        timeout: Duration,
    ) -> Result<Self, ClientError> {
        let wrong_url = || ClientError::Url { url: address.url() };
        let tls = if address.is_tls {
            let name = ServerName::try_from(address.host.clone()).map_err(|_| wrong_url())?;
            Some((trust.connector()?, name))
        } else {
            None
        };
        let host = HeaderValue::from_str(&address.authority()).map_err(|_| wrong_url())?;
        let authorization = key
            .map(|key| {
                let mut value =
                    HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| ClientError::Key)?;
                value.set_sensitive(true);
                Ok::<_, ClientError>(value)
            })
            .transpose()?;
        Ok(Self { address, tls, host, authorization, timeout, idle: Arc::default() })
    }

    /// Asks for a JSON document.
    pub async fn get(&self, path: &str) -> Result<Value, Failure> {
        let request = self.request(Method::GET, path, Bytes::new())?;
        let answer = async {
            let (response, sender) = self.send(request).await?;
            let status = response.status();
            let body = whole(response).await?;
            self.keep(sender);
            if !status.is_success() {
                return Err(Failure::of_status(status.as_u16(), &body, None));
            }
            serde_json::from_slice(&body).map_err(|error| {
                Failure::new(
                    Kind::Foreign,
                    format!("`{path}` answered with something else than JSON ({error})"),
                )
            })
        };
        timeout(self.timeout, answer).await.unwrap_or_else(|_| Err(self.too_slow()))
    }

    /// Posts a request and reads its stream; `on_output` is called with the time of each event with output.
    pub async fn stream(
        &self,
        path: &str,
        body: Bytes,
        keep_text: bool,
        on_output: impl FnMut(Instant),
    ) -> Result<Answer, Failure> {
        let request = self.request(Method::POST, path, body)?;
        let answer = async {
            let (response, sender) = self.send(request).await?;
            let status = response.status().as_u16();
            if status != 200 {
                let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
                let retry_after = retry_after.and_then(|text| text.parse().ok()).map(Duration::from_secs);
                let body = whole(response).await?;
                self.keep(sender);
                return Err(Failure::of_status(status, &body, retry_after));
            }
            let answer = read(response, keep_text, on_output).await?;
            self.keep(sender);
            Ok(answer)
        };
        timeout(self.timeout, answer).await.unwrap_or_else(|_| Err(self.too_slow()))
    }

    fn too_slow(&self) -> Failure {
        let limit = humantime::format_duration(self.timeout);
        Failure::new(Kind::Timeout, format!("no complete answer within {limit} (`--timeout`)"))
    }

    fn request(&self, method: Method, path: &str, body: Bytes) -> Result<Request<Full<Bytes>>, Failure> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.address.base))
            .header(HOST, &self.host)
            .header(CONTENT_TYPE, "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        request.body(Full::new(body)).map_err(|error| Failure::new(Kind::Foreign, error.to_string()))
    }

    /// Sends a request over an idle connection or a new one.
    async fn send(&self, request: Request<Full<Bytes>>) -> Result<(Response<Incoming>, Sender), Failure> {
        let lost = |error: hyper::Error| match (error.is_parse(), self.address.is_tls) {
            (true, false) => {
                Failure::new(Kind::Foreign, "the answer is no HTTP; hint: `https://`, if the server has TLS")
            }
            _ => Failure::new(Kind::Cut, format!("the connection broke ({error})")),
        };
        let mut request = request;
        while let Some(mut sender) = self.take() {
            if sender.ready().await.is_err() {
                continue;
            }
            match sender.try_send_request(request).await {
                Ok(response) => return Ok((response, sender)),
                // The server closed the idle connection before it saw the request.
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(lost(error.into_error())),
                },
            }
        }
        let mut sender = self.connect().await?;
        sender.send_request(request).await.map_err(lost).map(|response| (response, sender))
    }

    async fn connect(&self) -> Result<Sender, Failure> {
        let failed = |problem: String| {
            Failure::new(Kind::Connect, format!("cannot connect to `{}`: {problem}", self.address.url()))
        };
        let connect = async {
            let tcp = TcpStream::connect((self.address.host.as_str(), self.address.port))
                .await
                .map_err(|error| failed(error.to_string()))?;
            tcp.set_nodelay(true).map_err(|error| failed(error.to_string()))?;
            match &self.tls {
                Some((connector, name)) => {
                    let tls = connector
                        .connect(name.clone(), tcp)
                        .await
                        .map_err(|error| failed(tls::problem(&error)))?;
                    handshake(tls).await.map_err(|error| failed(error.to_string()))
                }
                None => handshake(tcp).await.map_err(|error| failed(error.to_string())),
            }
        };
        let limit = CONNECT_TIMEOUT.as_secs();
        timeout(CONNECT_TIMEOUT, connect)
            .await
            .unwrap_or_else(|_| Err(failed(format!("no answer within {limit} s"))))
    }

    fn take(&self) -> Option<Sender> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn keep(&self, sender: Sender) {
        if !sender.is_closed() {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
        }
    }
}

async fn handshake<S>(stream: S) -> hyper::Result<Sender>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // A broken connection shows at its request.
    tokio::spawn(async { connection.await.ok() });
    Ok(sender)
}

async fn whole(response: Response<Incoming>) -> Result<Vec<u8>, Failure> {
    let mut body = response.into_body();
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| Failure::new(Kind::Cut, format!("the answer broke off ({error})")))?;
        if let Some(data) = frame.data_ref() {
            let room = MAX_ANSWER_BYTES - bytes.len();
            bytes.extend_from_slice(&data[..data.len().min(room)]);
        }
    }
    Ok(bytes)
}

/// Reads a stream to its end. All events of a piece of the body arrived with it.
async fn read(
    response: Response<Incoming>,
    keep_text: bool,
    mut on_output: impl FnMut(Instant),
) -> Result<Answer, Failure> {
    let server = response.headers().get(SERVER).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let mut answer = Answer { server, ..Answer::default() };
    let mut body = response.into_body();
    let mut splitter = Splitter::default();
    let (mut is_complete, mut failure) = (false, None);
    while let Some(frame) = body.frame().await {
        let now = Instant::now();
        let frame = frame.map_err(|error| cut(&answer, &error.to_string()))?;
        let Some(bytes) = frame.data_ref() else { continue };
        let on_data = |data: &[u8]| match event::parse(data) {
            Ok((event, usage)) => {
                answer.usage = usage.or(answer.usage);
                match event {
                    Event::Output { text, is_last } => {
                        is_complete |= is_last;
                        answer.arrivals.push(now);
                        if keep_text {
                            answer.text += &text;
                        }
                        on_output(now);
                    }
                    Event::Done => is_complete = true,
                    Event::Error(message) => failure = Some(Failure::new(Kind::Error, message)),
                    Event::Other => {}
                }
            }
            Err(error) => {
                failure = Some(Failure::new(
                    Kind::Foreign,
                    format!("an event of the stream is no valid JSON ({error})"),
                ));
            }
        };
        splitter
            .push(bytes, on_data)
            .map_err(|_| Failure::new(Kind::Foreign, "an event of the stream is longer than 16 MiB"))?;
        if let Some(failure) = failure {
            return Err(failure);
        }
    }
    if !is_complete {
        return Err(cut(&answer, "without a last event"));
    }
    if answer.arrivals.is_empty() {
        return Err(Failure::new(Kind::Foreign, "the stream has no output"));
    }
    Ok(answer)
}

fn cut(answer: &Answer, how: &str) -> Failure {
    Failure::new(
        Kind::Cut,
        format!("the stream ended after {} events with output ({how})", answer.arrivals.len()),
    )
}
