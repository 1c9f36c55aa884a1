//! gRPC frames, and delay.v1.EnqueueResponse onto the protobuf wire.

use bytes::{Bytes, BytesMut};

/// What was stored of one request.
pub struct Stored<'a> {
    pub uid: u64,
    pub first_seq: i64,
    pub count: u32,
    /// i64[count] ms; empty when the request had no relative time.
    pub due: &'a [u8],
    pub duplicate: bool,
}

/// A message with its gRPC prefix: one byte "not compressed", four bytes of length.
pub fn framed(message: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(5 + message.len());
    out.extend_from_slice(&prefix(message.len()));
    out.extend_from_slice(message);
    out.freeze()
}

/// An EnqueueResponse, with its gRPC prefix.
pub fn stored(stored: &Stored<'_>) -> Bytes {
    let mut out = begun(48 + stored.due.len());
    if stored.uid != 0 {
        out.push(0x09);
        out.extend_from_slice(&stored.uid.to_le_bytes());
    }
    if stored.first_seq != 0 {
        out.push(0x10);
        varint(&mut out, stored.first_seq as u64);
    }
    if stored.count != 0 {
        out.push(0x18);
        varint(&mut out, u64::from(stored.count));
    }
    if !stored.due.is_empty() {
        bytes(&mut out, 4, stored.due);
    }
    if stored.duplicate {
        out.extend_from_slice(&[0x28, 1]);
    }
    finish(out)
}

/// An EnqueueResponse that has only `error`, an encoded delay.v1.Error; with its gRPC prefix.
pub fn refused(error: &[u8]) -> Bytes {
    let mut out = begun(6 + error.len());
    bytes(&mut out, 6, error);
    finish(out)
}

/// google.rpc.Status: int32 code = 1, string message = 2, then its `details` as they are given, encoded.
pub fn rich_status(code: u32, message: &str, details: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(16 + message.len() + details.len());
    out.push(0x08);
    varint(&mut out, u64::from(code));
    bytes(&mut out, 2, message.as_bytes());
    out.extend_from_slice(details);
    out.into()
}

/// What stands before a message of that length: one byte "not compressed", four bytes of length.
pub fn prefix(length: usize) -> [u8; 5] {
    let [a, b, c, d] = (length as u32).to_be_bytes();
    [0, a, b, c, d]
}

/// The prefix of a message of about so many bytes, which finish() fills in.
pub fn begun(capacity: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(5 + capacity);
    out.extend_from_slice(&prefix(0));
    out
}

pub fn finish(mut out: Vec<u8>) -> Bytes {
    let whole = prefix(out.len() - 5);
    out[..5].copy_from_slice(&whole);
    Bytes::from(out)
}

/// A field of bytes. number: up to 15.
pub fn bytes(out: &mut Vec<u8>, number: u8, value: &[u8]) {
    head(out, number, value.len());
    out.extend_from_slice(value);
}

/// What stands before the bytes of a field.
pub fn head(out: &mut Vec<u8>, number: u8, length: usize) {
    out.push(number << 3 | 2);
    varint(out, length as u64);
}

/// Bytes that a field of so many takes.
pub fn field_len(length: usize) -> usize {
    1 + (64 - (length as u64 | 1).leading_zeros() as usize).div_ceil(7) + length
}

pub fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_the_bytes_that_protobuf_gives_it() {
        let due = 1_000i64.to_le_bytes();
        let answer = stored(&Stored { uid: 1, first_seq: 300, count: 1, due: &due, duplicate: true });
        let wanted =
            [&[0, 0, 0, 0, 26, 0x09, 1, 0, 0, 0, 0, 0, 0, 0, 0x10, 0xac, 0x02, 0x18, 1, 0x22, 8][..], &due, &[0x28, 1]]
                .concat();
        assert_eq!(answer, wanted);
    }

    #[test]
    fn a_refusal_carries_the_error() {
        assert_eq!(refused(b"\x08\x03"), &[0, 0, 0, 0, 4, 0x32, 2, 0x08, 0x03][..]);
    }

    #[test]
    fn a_rich_status_has_code_message_and_details() {
        assert_eq!(rich_status(8, "no", b"\x1a\x00"), &[0x08, 8, 0x12, 2, b'n', b'o', 0x1a, 0][..]);
    }

    #[test]
    fn an_empty_message_is_a_prefix_alone() {
        assert_eq!(framed(b""), &[0; 5][..]);
    }
}
