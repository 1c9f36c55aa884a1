//! A door's request about one message, as a row: SendMessage of apache.rocketmq.v2 and Send of delay.v1's MessageService
//! store one, AckMessage of apache.rocketmq.v2 acknowledges one.
//!
//! ```text
//! to store:        request -> Columns: a record (delay.v1.Message), its hashes and time
//! to acknowledge:  request -> Columns: a record, which is its receipt
//!                  both    -> Asked: what the answer needs
//! ```
//! Only what is usual is read. All else (several messages, a field that is not known here, GZIP, what is to be refused) is
//! served by Python from the request's bytes, so that there is one place that words refusals. Whatever is read here is
//! what Python would make of it.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use flate2::Crc;

use crate::columns::LARGE_BYTES;
use crate::decode::{BYTES, EnqueueRequest, Input, VARINT};
use crate::encode;
use crate::inbox::Metadata;

const MAX_SECONDS: u64 = 253_402_300_800; // the year 10000, where Timestamp ends
const MAX_DELAY_MS: i64 = 10_000 * 86_400_000;
const MAX_ID_BYTES: usize = 256;
const MAX_PROPERTIES: usize = 128;
const MAX_PROPERTIES_BYTES: usize = 16 << 10;
const MAX_HOST_BYTES: usize = 255;
const RECEIPT_NUMBERS: usize = 4 + 8 + 8 + 4 + 8; // bytes after the names
const OWN: &str = "rocketmq.";
const CLIENT_ID: &str = "x-mq-client-id";

/// By which protocol a request came, and what for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Door {
    RocketMq,
    RocketMqAck,
    Rows,
}

/// What the answer needs.
#[derive(Debug)]
pub struct Asked {
    pub door: Door,
    /// The topic of a message to be stored, the client that acknowledges one: what may be together has the same.
    pub of: Arc<str>,
    pub message_id: String,
    /// The due in ms since 1970, or the delay where it is relative; `None`: at once.
    pub time_ms: Option<i64>,
    /// Of what is acknowledged.
    pub receipt_handle: String,
}

/// One message to be stored, or a receipt.
#[derive(Debug, Default)]
pub struct Columns {
    record: Vec<u8>,
    time: [u8; 8],
    relative: bool,
    size: [u8; 4],
    key_hash: [u8; 4],
    tag_hash: [u8; 4],
}

type Read = (Asked, Columns);

impl Columns {
    /// As a request of a queue that Python will choose.
    pub fn request<'a>(&'a self, of: &'a str) -> EnqueueRequest<'a> {
        EnqueueRequest {
            topic: of,
            count: 1,
            time: &self.time,
            relative: if self.relative { &[1] } else { &[] },
            size: &self.size,
            key_hash: &self.key_hash,
            tag_hash: &self.tag_hash,
            records: &self.record,
            ..EnqueueRequest::default()
        }
    }
}

impl Door {
    /// By the name that Python has for it.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "rocketmq" => Some(Door::RocketMq),
            "rocketmq-ack" => Some(Door::RocketMqAck),
            "rows" => Some(Door::Rows),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Door::RocketMq => "rocketmq",
            Door::RocketMqAck => "rocketmq-ack",
            Door::Rows => "rows",
        }
    }

    /// What a request is about, if it is a usual one.
    pub fn read(self, request: &[u8], metadata: &Metadata) -> Option<Read> {
        let client =
            || metadata.iter().find(|(name, id)| name == CLIENT_ID && !id.is_empty()).map(|(_, id)| id.as_str());
        match self {
            _ if request.len() > 2 * LARGE_BYTES => None,
            Door::RocketMq => client().and_then(|_| rocketmq(request)),
            Door::RocketMqAck => rocketmq_ack(request, client()?),
            Door::Rows => rows(request),
        }
    }

    /// Whether messages are stored, for which the budget is that of Enqueue.
    pub fn stores(self) -> bool {
        self != Door::RocketMqAck
    }
}

/// The parts of a message, as a protocol has them.
#[derive(Default)]
struct Parts<'a> {
    key: Option<&'a str>,
    tag: Option<&'a str>,
    properties: Vec<(&'a str, &'a str)>,
    body: Option<&'a [u8]>,
    message_id: Option<&'a str>,
    time_ms: Option<i64>,
    relative: bool,
    born_ms: Option<i64>,
}

impl Parts<'_> {
    fn read(self, door: Door, topic: &str) -> Option<Read> {
        let (key, tag) = (self.key.unwrap_or(""), self.tag.unwrap_or(""));
        let message_id = self.message_id.unwrap_or("");
        let mut record = Vec::with_capacity(64 + self.body.map_or(0, <[u8]>::len));
        put(&mut record, 1, key.as_bytes());
        put(&mut record, 2, tag.as_bytes());
        for (name, value) in self.properties {
            let size = encode::field_len(name.len()) + encode::field_len(value.len());
            encode::head(&mut record, 3, size);
            encode::bytes(&mut record, 1, name.as_bytes());
            encode::bytes(&mut record, 2, value.as_bytes());
        }
        put(&mut record, 4, self.body.unwrap_or(&[]));
        if let Some(born_ms) = self.born_ms.filter(|&born_ms| born_ms != 0) {
            record.push(0x28);
            encode::varint(&mut record, born_ms as u64);
        }
        put(&mut record, 6, message_id.as_bytes());
        if record.is_empty() {
            return None;
        }
        let (of, message_id, receipt_handle) = (topic.into(), message_id.to_owned(), String::new());
        let asked = Asked { door, of, message_id, time_ms: self.time_ms, receipt_handle };
        let columns = Columns {
            time: self.time_ms.unwrap_or(0).to_le_bytes(),
            relative: self.relative,
            size: u32::try_from(record.len()).ok()?.to_le_bytes(),
            key_hash: hash(key)?,
            tag_hash: hash(tag)?,
            record,
        };
        Some((asked, columns))
    }
}

/// crc32, and 0 for no text. A text whose crc32 is 0 is not a usual one: it would look like none.
fn hash(text: &str) -> Option<[u8; 4]> {
    let found = crc32(text.as_bytes());
    if found == 0 && !text.is_empty() { None } else { Some(found.to_le_bytes()) }
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}

fn put(out: &mut Vec<u8>, number: u8, value: &[u8]) {
    if !value.is_empty() {
        encode::bytes(out, number, value);
    }
}

// ------------------------------------------------------------ off the wire
#[derive(Clone, Copy)]
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Each field of a message in its turn; `None` where one is of another wire type, or `on` does not know it.
fn each<'a>(data: &'a [u8], mut on: impl FnMut(u32, Value<'a>) -> Option<()>) -> Option<()> {
    let mut input = Input { rest: data };
    while !input.rest.is_empty() {
        let tag = input.tag().ok()?;
        let value = match (tag & 7) as u8 {
            VARINT => Value::Number(input.varint().ok()?),
            BYTES => Value::Bytes(input.bytes().ok()?),
            _ => return None,
        };
        on(tag >> 3, value)?;
    }
    Some(())
}

/// Set what is not set yet: what comes twice is not usual.
fn once<T>(place: &mut Option<T>, value: T) -> Option<()> {
    place.is_none().then(|| *place = Some(value))
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

/// Printable ASCII, and not blank.
fn name(bytes: &[u8]) -> Option<&str> {
    let printable = bytes.iter().all(|byte| (0x20..0x7f).contains(byte));
    let blank = bytes.iter().all(|&byte| byte == b' ');
    if printable && !blank { text(bytes) } else { None }
}

/// seconds, and nanoseconds in full ms rounded up, of a Timestamp or Duration.
fn milliseconds(data: &[u8]) -> Option<i64> {
    let (mut seconds, mut nanos) = (None, None);
    each(data, |number, value| match (number, value) {
        (1, Value::Number(value)) => once(&mut seconds, value),
        (2, Value::Number(value)) => once(&mut nanos, value),
        _ => None,
    })?;
    let (seconds, nanos) = (seconds.unwrap_or(0), nanos.unwrap_or(0));
    if seconds >= MAX_SECONDS || nanos >= 1_000_000_000 {
        return None;
    }
    i64::try_from(seconds * 1_000 + nanos.div_ceil(1_000_000)).ok()
}

fn property<'a>(entry: &'a [u8], found: &mut Vec<(&'a str, &'a str)>) -> Option<()> {
    let (mut key, mut value) = (None, None);
    each(entry, |number, field| match (number, field) {
        (1, Value::Bytes(bytes)) => once(&mut key, text(bytes)?),
        (2, Value::Bytes(bytes)) => once(&mut value, text(bytes)?),
        _ => None,
    })?;
    let key = key.unwrap_or("");
    if found.len() >= MAX_PROPERTIES || found.iter().any(|(other, _)| *other == key) {
        return None;
    }
    found.push((key, value.unwrap_or("")));
    Some(())
}

/// The only message of a request, and its topic where the request names it.
fn only(request: &[u8], topic_number: Option<u32>, number: u32) -> Option<(Option<&str>, &[u8])> {
    let (mut topic, mut message) = (None, None);
    each(request, |of, value| match value {
        Value::Bytes(bytes) if of == number => once(&mut message, bytes),
        Value::Bytes(bytes) if Some(of) == topic_number => once(&mut topic, text(bytes)?),
        _ => None,
    })?;
    Some((topic, message?))
}

// ------------------------------------------------------------ apache.rocketmq.v2.SendMessageRequest
fn rocketmq(request: &[u8]) -> Option<Read> {
    let (_, message) = only(request, None, 1)?;
    let (mut topic, mut system) = (None, None);
    let mut parts = Parts::default();
    each(message, |number, value| match (number, value) {
        (1, Value::Bytes(resource)) => once(&mut topic, resource_name(resource)?),
        (2, Value::Bytes(entry)) => property(entry, &mut parts.properties),
        (3, Value::Bytes(bytes)) => once(&mut system, bytes),
        (4, Value::Bytes(bytes)) => once(&mut parts.body, bytes),
        _ => None,
    })?;
    let usual = |(key, _): &(&str, &str)| name(key.as_bytes()).is_some() && !key.starts_with(OWN);
    if !parts.properties.iter().all(usual) {
        return None;
    }
    let user: usize = parts.properties.iter().map(|(key, value)| key.len() + value.len()).sum();
    let (mut digest, mut host, mut trace) = (None, None, None);
    each(system?, |number, value| match (number, value) {
        (1, Value::Bytes(bytes)) if !bytes.contains(&b'|') => once(&mut parts.tag, name(bytes)?),
        (2, Value::Bytes(bytes)) => once(&mut parts.key, name(bytes)?),
        (3, Value::Bytes(bytes)) if bytes.len() <= MAX_ID_BYTES => once(&mut parts.message_id, name(bytes)?),
        (4, Value::Bytes(bytes)) => once(&mut digest, bytes),
        (5, Value::Number(0 | 1)) => Some(()),     // IDENTITY
        (6, Value::Number(0 | 1 | 3)) => Some(()), // NORMAL, DELAY
        (7, Value::Bytes(bytes)) => once(&mut parts.born_ms, milliseconds(bytes)?),
        (8, Value::Bytes(bytes)) if bytes.len() <= MAX_HOST_BYTES => once(&mut host, text(bytes)?),
        (11, Value::Bytes(bytes)) => once(&mut parts.time_ms, milliseconds(bytes)?),
        (13, Value::Number(_)) => Some(()), // of the broker's queue
        (18, Value::Bytes(bytes)) => once(&mut trace, text(bytes)?),
        _ => None,
    })?;
    let size = user + [parts.tag, parts.key, trace].iter().flatten().map(|text| text.len()).sum::<usize>();
    if size > MAX_PROPERTIES_BYTES || parts.message_id.is_none() || parts.born_ms.is_none() {
        return None;
    }
    let body = parts.body.filter(|body| !body.is_empty() && body.len() <= LARGE_BYTES)?;
    digest.map_or(Some(()), |digest| check_digest(digest, body))?;
    let own = [("rocketmq.born_host", host), ("rocketmq.trace_context", trace)];
    parts.properties.extend(own.iter().filter_map(|&(name, value)| Some((name, value.filter(|one| !one.is_empty())?))));
    parts.read(Door::RocketMq, topic?)
}

/// Of a resource without a namespace.
fn resource_name(resource: &[u8]) -> Option<&str> {
    let mut found = None;
    each(resource, |number, value| match (number, value) {
        (1, Value::Bytes(b"")) => Some(()),
        (2, Value::Bytes(bytes)) => once(&mut found, text(bytes)?),
        _ => None,
    })?;
    found
}

/// None, or a crc32 that is the body's.
fn check_digest(digest: &[u8], body: &[u8]) -> Option<()> {
    let (mut kind, mut said) = (None, None);
    each(digest, |number, value| match (number, value) {
        (1, Value::Number(value)) => once(&mut kind, value),
        (2, Value::Bytes(bytes)) => once(&mut said, text(bytes)?),
        _ => None,
    })?;
    match kind {
        None | Some(0) => Some(()),
        Some(1) => {
            let said = said.filter(|said| said.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
            (u32::from_str_radix(said, 16).ok()? == crc32(body)).then_some(())
        }
        Some(_) => None,
    }
}

// ------------------------------------------------------------ apache.rocketmq.v2.AckMessageRequest
fn rocketmq_ack(request: &[u8], client: &str) -> Option<Read> {
    let (mut group, mut topic, mut entry) = (None, None, None);
    each(request, |number, value| match (number, value) {
        (1, Value::Bytes(resource)) => once(&mut group, resource_name(resource)?),
        (2, Value::Bytes(resource)) => once(&mut topic, resource_name(resource)?),
        (3, Value::Bytes(bytes)) => once(&mut entry, bytes),
        _ => None,
    })?;
    let (mut message_id, mut handle) = (None, None);
    each(entry?, |number, value| match (number, value) {
        (1, Value::Bytes(bytes)) if bytes.len() <= MAX_ID_BYTES => once(&mut message_id, text(bytes)?),
        (2, Value::Bytes(bytes)) => once(&mut handle, text(bytes)?),
        _ => None,
    })?;
    let (handle, message_id) = (handle?, message_id.unwrap_or("").to_owned());
    let record = unbase64url(handle)?;
    let names = receipt_names(&record)?;
    if names != (topic?.as_bytes(), group?.as_bytes()) {
        return None;
    }
    let size = u32::try_from(record.len()).ok()?.to_le_bytes();
    let receipt_handle = handle.to_owned();
    let asked = Asked { door: Door::RocketMqAck, of: client.into(), message_id, time_ms: None, receipt_handle };
    Some((asked, Columns { record, size, ..Columns::default() }))
}

/// Topic and group of a receipt as delayapi's receipt.py packs it, if it is whole.
fn receipt_names(packed: &[u8]) -> Option<(&[u8], &[u8])> {
    let (body, check) = packed.split_last_chunk::<4>()?;
    let [1, of_topic, of_group, names @ ..] = body else { return None };
    let (of_topic, of_group) = (usize::from(*of_topic), usize::from(*of_group));
    if names.len() != of_topic + of_group + RECEIPT_NUMBERS || crc32(body) != u32::from_le_bytes(*check) {
        return None;
    }
    Some((&names[..of_topic], &names[of_topic..of_topic + of_group]))
}

// ------------------------------------------------------------ delay.v1.SendRequest
fn rows(request: &[u8]) -> Option<Read> {
    let (topic, message) = only(request, Some(1), 2)?;
    let (mut parts, mut delay_ms) = (Parts::default(), None);
    each(message, |number, value| match (number, value) {
        (1, Value::Bytes(bytes)) => once(&mut parts.time_ms, milliseconds(bytes)?),
        (2, Value::Bytes(bytes)) => once(&mut delay_ms, milliseconds(bytes).filter(|&ms| ms <= MAX_DELAY_MS)?),
        (3, Value::Bytes(bytes)) => once(&mut parts.key, text(bytes)?),
        (4, Value::Bytes(bytes)) => once(&mut parts.tag, text(bytes)?),
        (5, Value::Bytes(entry)) => property(entry, &mut parts.properties),
        (6, Value::Bytes(bytes)) if bytes.len() <= LARGE_BYTES => once(&mut parts.body, bytes),
        (7, Value::Bytes(bytes)) if bytes.len() <= LARGE_BYTES => once(&mut parts.body, text(bytes)?.as_bytes()),
        (8, Value::Bytes(bytes)) if bytes.len() <= MAX_ID_BYTES => once(&mut parts.message_id, text(bytes)?),
        _ => None,
    })?;
    if delay_ms.is_some() {
        once(&mut parts.time_ms, delay_ms?)?;
        parts.relative = true;
    }
    parts.born_ms =
        SystemTime::now().duration_since(UNIX_EPOCH).ok().and_then(|now| i64::try_from(now.as_millis()).ok());
    parts.read(Door::Rows, topic?)
}

// ------------------------------------------------------------ onto the wire
impl Asked {
    /// The answer that says where the message is; with its gRPC prefix.
    pub fn stored(&self, queue: u32, uid: u64, due_ms: i64, seq: i64) -> Bytes {
        let handle = || handle(&self.of, queue, uid, due_ms, seq);
        match self.door {
            Door::Rows => rows_answer(&handle(), due_ms),
            _ => {
                let recall = self.time_ms.map(|_| format!("{}.{}", handle(), self.message_id));
                send_answer(OK, &self.message_id, seq, recall.as_deref().unwrap_or(""))
            }
        }
    }

    /// The answer that says what became of it, of a door that says so in answers. status: apache.rocketmq.v2.Status,
    /// encoded.
    pub fn answer(&self, status: &[u8]) -> Bytes {
        match self.door {
            Door::RocketMqAck => ack_answer(status, &self.message_id, &self.receipt_handle),
            _ => send_answer(status, &self.message_id, 0, ""),
        }
    }
}

/// apache.rocketmq.v2.Status {code: OK, message: "OK"}.
const OK: &[u8] = &[0x08, 0xa0, 0x9c, 0x01, 0x12, 2, b'O', b'K'];

/// SendMessageResponse {status, entries: [{status, message_id, offset, recall_handle}]}.
fn send_answer(status: &[u8], message_id: &str, offset: i64, recall_handle: &str) -> Bytes {
    let mut entry = Vec::with_capacity(32 + status.len() + message_id.len() + recall_handle.len());
    encode::bytes(&mut entry, 1, status);
    put(&mut entry, 2, message_id.as_bytes());
    if offset != 0 {
        entry.push(0x20);
        encode::varint(&mut entry, offset as u64);
    }
    put(&mut entry, 5, recall_handle.as_bytes());
    let mut out = encode::begun(16 + status.len() + entry.len());
    encode::bytes(&mut out, 1, status);
    encode::bytes(&mut out, 2, &entry);
    encode::finish(out)
}

/// AckMessageResponse {status, entries: [{message_id, receipt_handle, status}]}.
fn ack_answer(status: &[u8], message_id: &str, receipt_handle: &str) -> Bytes {
    let mut entry = Vec::with_capacity(16 + status.len() + message_id.len() + receipt_handle.len());
    put(&mut entry, 1, message_id.as_bytes());
    put(&mut entry, 2, receipt_handle.as_bytes());
    encode::bytes(&mut entry, 3, status);
    let mut out = encode::begun(16 + status.len() + entry.len());
    encode::bytes(&mut out, 1, status);
    encode::bytes(&mut out, 2, &entry);
    encode::finish(out)
}

/// SendResponse {results: [{handle, due}]}. due_ms 0: at once, and none is said.
fn rows_answer(handle: &str, due_ms: i64) -> Bytes {
    let mut result = Vec::with_capacity(32 + handle.len());
    encode::bytes(&mut result, 1, handle.as_bytes());
    if due_ms > 0 {
        let due_ms = (due_ms as u64).min(MAX_SECONDS * 1_000 - 1);
        let (seconds, nanos) = (due_ms / 1_000, due_ms % 1_000 * 1_000_000);
        let mut due = Vec::with_capacity(16);
        for (tag, value) in [(0x08, seconds), (0x10, nanos)] {
            if value != 0 {
                due.push(tag);
                encode::varint(&mut due, value);
            }
        }
        encode::bytes(&mut result, 2, &due);
    }
    let mut out = encode::begun(8 + result.len());
    encode::bytes(&mut out, 1, &result);
    encode::finish(out)
}

/// As delayapi's handle.py has it. topic: of at most 255 bytes, since it is known.
fn handle(topic: &str, queue: u32, uid: u64, due_ms: i64, seq: i64) -> String {
    let mut packed = vec![1, topic.len() as u8];
    packed.extend_from_slice(topic.as_bytes());
    packed.extend_from_slice(&queue.to_le_bytes());
    packed.extend_from_slice(&uid.to_le_bytes());
    packed.extend_from_slice(&due_ms.to_le_bytes());
    packed.extend_from_slice(&seq.to_le_bytes());
    packed.extend_from_slice(&crc32(&packed).to_le_bytes());
    base64url(&packed)
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

fn base64url(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut three = [0; 4];
        three[1..=chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes(three);
        out.extend((0..=chunk.len()).map(|at| char::from(DIGITS[(bits >> (18 - 6 * at) & 63) as usize])));
    }
    out
}

/// `None` for what base64url() would not write like that.
fn unbase64url(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for chunk in text.as_bytes().chunks(4) {
        let mut bits = 0;
        for &digit in chunk {
            bits = bits << 6 | value_of(digit)?;
        }
        let [_, three @ ..] = (bits << (6 * (4 - chunk.len()))).to_be_bytes();
        let (bytes, left) = three.split_at(chunk.len() - 1);
        if left.iter().any(|&byte| byte != 0) {
            return None;
        }
        out.extend_from_slice(bytes);
    }
    (text.len() % 4 != 1).then_some(out)
}

fn value_of(digit: u8) -> Option<u32> {
    Some(u32::from(match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'-' => 62,
        b'_' => 63,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64url_is_read_as_it_is_written_and_not_otherwise() {
        for length in 0..200 {
            let bytes: Vec<u8> = (0..length).map(|at| (at * 151 + length * 7) as u8).collect();
            let text = base64url(&bytes);
            assert_eq!(unbase64url(&text).as_deref(), Some(&bytes[..]));
            for wrong in [text.clone() + "=", text.clone() + "A", format!("{text}\u{e9}"), format!("+{text}")] {
                assert!(unbase64url(&wrong).is_none_or(|read| base64url(&read) == wrong), "{wrong}");
            }
        }
        assert_eq!((unbase64url("AB"), unbase64url("AQ")), (None, Some(vec![1])));
    }
}
