//! gRPC's conventions on top of HTTP/2: statuses, timeouts, response heads.

use std::fmt::Write;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request, Response, StatusCode};

use crate::inflate::Encoding;

pub const CANCELLED: u32 = 1;
pub const DEADLINE_EXCEEDED: u32 = 4;
pub const RESOURCE_EXHAUSTED: u32 = 8;
pub const UNAVAILABLE: u32 = 14;
pub const UNIMPLEMENTED: u32 = 12;
pub const INTERNAL: u32 = 13;
pub const UNAUTHENTICATED: u32 = 16;

const ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
const ACCEPTED: HeaderValue = HeaderValue::from_static(Encoding::ACCEPTED);
const MAX_TIMEOUT_DIGITS: usize = 8;

/// How a call ends.
#[derive(Debug, Clone)]
pub struct Status {
    pub code: u32,
    pub message: String,
    /// An encoded google.rpc.Status, or empty.
    pub details: Bytes,
}

impl Status {
    pub fn new(code: u32, message: impl Into<String>) -> Self {
        Status { code, message: message.into(), details: Bytes::new() }
    }

    pub fn trailers(&self) -> HeaderMap {
        let mut trailers = HeaderMap::with_capacity(4);
        trailers.insert(HeaderName::from_static("grpc-status"), HeaderValue::from(self.code));
        if !self.message.is_empty() {
            if let Ok(text) = HeaderValue::from_str(&percent_encoded(&self.message)) {
                trailers.insert(HeaderName::from_static("grpc-message"), text);
            }
        }
        if !self.details.is_empty() {
            if let Ok(text) = HeaderValue::from_str(&base64(&self.details)) {
                trailers.insert(HeaderName::from_static("grpc-status-details-bin"), text);
            }
        }
        if self.code == UNIMPLEMENTED {
            trailers.insert(ACCEPT_ENCODING, ACCEPTED);
        }
        trailers
    }

    /// The whole answer of a call that has nothing else: its head is its trailers.
    pub fn trailers_only(&self) -> Response<()> {
        let mut head = head();
        head.headers_mut().extend(self.trailers());
        head
    }
}

pub fn head() -> Response<()> {
    let mut head = Response::new(());
    head.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    head.headers_mut().insert(ACCEPT_ENCODING, ACCEPTED);
    head
}

/// The trailers of a call that ended well.
pub fn ok() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"));
    trailers
}

/// The HTTP answer to a request that is no gRPC call, or `None` when it is one.
pub fn not_grpc<T>(request: &Request<T>) -> Option<Response<()>> {
    let kind = request.headers().get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let known = kind.strip_prefix(b"application/grpc").is_some_and(|rest| {
        rest.is_empty() || rest == b"+proto" || rest.starts_with(b";") || rest.starts_with(b"+proto;")
    });
    let code = if request.method() != Method::POST {
        StatusCode::METHOD_NOT_ALLOWED
    } else if !known {
        StatusCode::UNSUPPORTED_MEDIA_TYPE
    } else {
        return None;
    };
    let mut response = Response::new(());
    *response.status_mut() = code;
    Some(response)
}

/// The milliseconds of a `grpc-timeout`, rounded up; `None` when it is malformed.
pub fn timeout_ms(value: &[u8]) -> Option<u64> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > MAX_TIMEOUT_DIGITS || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits.iter().fold(0u64, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    match unit {
        b'H' => Some(number * 3_600_000),
        b'M' => Some(number * 60_000),
        b'S' => Some(number * 1_000),
        b'm' => Some(number),
        b'u' => Some(number.div_ceil(1_000)),
        b'n' => Some(number.div_ceil(1_000_000)),
        _ => None,
    }
}

fn percent_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for &byte in text.as_bytes() {
        if (0x20..0x7f).contains(&byte) && byte != b'%' {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// Base64 without padding, as gRPC's binary metadata has it.
fn base64(data: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(data.len().div_ceil(3) * 4);
    for three in data.chunks(3) {
        let bits = three.iter().fold(0u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - three.len()));
        for at in 0..=three.len() {
            out.push(char::from(LETTERS[(bits >> (18 - 6 * at) & 63) as usize]));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_and_malformed_ones_are_not() {
        for (text, ms) in [("5S", 5_000), ("250m", 250), ("2M", 120_000), ("1H", 3_600_000), ("1u", 1), ("0n", 0)] {
            assert_eq!(timeout_ms(text.as_bytes()), Some(ms));
        }
        for text in ["", "S", "1", "1x", "-1S", "123456789S", "1 S"] {
            assert_eq!(timeout_ms(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn messages_are_percent_encoded() {
        assert_eq!(percent_encoded("100% é\n"), "100%25 %C3%A9%0A");
    }

    #[test]
    fn details_are_base64_without_padding() {
        for (data, text) in
            [(&b""[..], ""), (b"f", "Zg"), (b"fo", "Zm8"), (b"foo", "Zm9v"), (b"\xff\xfe\xfd\xfc", "//79/A")]
        {
            assert_eq!(base64(data), text);
        }
    }

    #[test]
    fn only_post_with_a_grpc_content_type_is_a_call() {
        let request =
            |method: &str, kind: &str| Request::builder().method(method).header(CONTENT_TYPE, kind).body(()).unwrap();
        for kind in ["application/grpc", "application/grpc+proto", "application/grpc; charset=utf-8"] {
            assert!(not_grpc(&request("POST", kind)).is_none());
        }
        for kind in ["application/json", "application/grpc-web", "application/grpc+json", ""] {
            assert_eq!(not_grpc(&request("POST", kind)).unwrap().status(), 415);
        }
        assert_eq!(not_grpc(&request("GET", "application/grpc")).unwrap().status(), 405);
    }
}
