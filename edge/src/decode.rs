//! delay.v1.EnqueueRequest off the protobuf wire.
//!
//! ```text
//! field = tag value
//! tag   = varint(number << 3 | wire type), at most 5 bytes
//! value = varint (0), at most 10 bytes | 8 bytes (1) | varint length, bytes (2) | group (3 .. 4) | 4 bytes (5)
//! ```
//! Accepts and refuses the same inputs as Python's protobuf does: fields in any order, the last one wins, unknown ones
//! are skipped, also a known number with another wire type.

pub const MAX_MESSAGES: u32 = 65_536;
pub const MAX_RECORD_BYTES: u32 = 4 << 20;
pub const MAX_BATCH_BYTES: usize = 8 << 20;
const MAX_GROUP_DEPTH: u32 = 100;

pub const VARINT: u8 = 0;
const FIXED64: u8 = 1;
pub const BYTES: u8 = 2;
const START_GROUP: u8 = 3;
const END_GROUP: u8 = 4;
const FIXED32: u8 = 5;

/// The bytes are not an EnqueueRequest. Python decodes them again, and words the refusal.
#[derive(Debug, PartialEq)]
pub struct Malformed;

pub type Result<T> = std::result::Result<T, Malformed>;

/// A request whose columns are views over the bytes that were decoded.
#[derive(Debug, Default, PartialEq)]
pub struct EnqueueRequest<'a> {
    pub topic: &'a str,
    pub queue: u32,
    pub count: u32,
    pub time: &'a [u8],
    pub relative: &'a [u8],
    pub size: &'a [u8],
    pub key_hash: &'a [u8],
    pub tag_hash: &'a [u8],
    pub records: &'a [u8],
    pub producer_id: u64,
    pub number: u64,
    pub message_id: &'a [u8],
}

impl EnqueueRequest<'_> {
    /// Whether the node would take these columns as rows. One that it would refuse, and one with message ids, whose
    /// topic may deduplicate, goes to Python as bytes.
    pub fn columns_fit(&self) -> bool {
        let n = self.count as usize;
        self.message_id.is_empty()
            && self.count > 0
            && self.count <= MAX_MESSAGES
            && self.records.len() <= MAX_BATCH_BYTES
            && self.time.len() == 8 * n
            && self.size.len() == 4 * n
            && [(self.relative, 1), (self.key_hash, 4), (self.tag_hash, 4)]
                .iter()
                .all(|(column, width)| column.is_empty() || column.len() == width * n)
            && self.relative.iter().all(|&flag| flag <= 1)
            && self.time.chunks_exact(8).all(|time| time[7] < 0x80)
            && self.sizes_fit()
    }

    fn sizes_fit(&self) -> bool {
        let mut total = 0u64;
        for size in self.size.chunks_exact(4) {
            let size = u32::from_le_bytes([size[0], size[1], size[2], size[3]]);
            if size == 0 || size > MAX_RECORD_BYTES {
                return false;
            }
            total += u64::from(size);
        }
        total == self.records.len() as u64
    }
}

/// Decodes a request.
pub fn decode(data: &[u8]) -> Result<EnqueueRequest<'_>> {
    let mut request = EnqueueRequest::default();
    let mut input = Input { rest: data };
    while !input.rest.is_empty() {
        let tag = input.tag()?;
        match (tag >> 3, (tag & 7) as u8) {
            (1, BYTES) => request.topic = std::str::from_utf8(input.bytes()?).map_err(|_| Malformed)?,
            (2, VARINT) => request.queue = input.varint()? as u32,
            (3, VARINT) => request.count = input.varint()? as u32,
            (4, BYTES) => request.time = input.bytes()?,
            (5, BYTES) => request.relative = input.bytes()?,
            (6, BYTES) => request.size = input.bytes()?,
            (7, BYTES) => request.key_hash = input.bytes()?,
            (8, BYTES) => request.tag_hash = input.bytes()?,
            (9, BYTES) => request.records = input.bytes()?,
            (10, FIXED64) => request.producer_id = input.fixed64()?,
            (11, VARINT) => request.number = input.varint()?,
            (12, BYTES) => request.message_id = input.bytes()?,
            _ => input.skip(tag, 0)?,
        }
    }
    Ok(request)
}

/// What is left of a message.
pub struct Input<'a> {
    pub rest: &'a [u8],
}

impl<'a> Input<'a> {
    fn byte(&mut self) -> Result<u8> {
        let (&byte, rest) = self.rest.split_first().ok_or(Malformed)?;
        self.rest = rest;
        Ok(byte)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Malformed)?;
        self.rest = rest;
        Ok(taken)
    }

    /// A varint of at most `longest` bytes. Bits above the 64th are dropped, as protobuf does.
    fn varint_within(&mut self, longest: u32) -> Result<u64> {
        let mut value = 0u64;
        for at in 0..longest {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << (7 * at);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }

    pub fn varint(&mut self) -> Result<u64> {
        self.varint_within(10)
    }

    pub fn tag(&mut self) -> Result<u32> {
        let tag = u32::try_from(self.varint_within(5)?).map_err(|_| Malformed)?;
        if tag < 8 { Err(Malformed) } else { Ok(tag) }
    }

    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        let length = self.varint_within(5)?;
        self.take(usize::try_from(length).map_err(|_| Malformed)?)
    }

    fn fixed64(&mut self) -> Result<u64> {
        let bytes = self.take(8)?.try_into().map_err(|_| Malformed)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn skip(&mut self, tag: u32, depth: u32) -> Result<()> {
        match (tag & 7) as u8 {
            VARINT => self.varint().map(|_| ()),
            BYTES => self.bytes().map(|_| ()),
            FIXED64 => self.take(8).map(|_| ()),
            FIXED32 => self.take(4).map(|_| ()),
            START_GROUP if depth < MAX_GROUP_DEPTH => loop {
                let inner = self.tag()?;
                if (inner & 7) as u8 == END_GROUP {
                    return if inner >> 3 == tag >> 3 { Ok(()) } else { Err(Malformed) };
                }
                self.skip(inner, depth + 1)?;
            },
            _ => Err(Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u8, wire: u8, value: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | wire];
        if wire == BYTES {
            out.push(value.len() as u8);
        }
        out.extend_from_slice(value);
        out
    }

    fn two_messages() -> Vec<u8> {
        [
            field(1, BYTES, b"orders"),
            field(2, VARINT, &[3]),
            field(3, VARINT, &[2]),
            field(4, BYTES, &[0; 16]),
            field(6, BYTES, &[1, 0, 0, 0, 2, 0, 0, 0]),
            field(9, BYTES, b"abc"),
            field(10, FIXED64, &7u64.to_le_bytes()),
            field(11, VARINT, &[9]),
        ]
        .concat()
    }

    #[test]
    fn every_field_is_read() {
        let data = two_messages();
        let request = decode(&data).unwrap();
        assert_eq!((request.topic, request.queue, request.count), ("orders", 3, 2));
        assert_eq!((request.records, request.producer_id, request.number), (&b"abc"[..], 7, 9));
        assert!(request.columns_fit());
    }

    #[test]
    fn the_last_occurrence_wins_and_unknown_fields_are_skipped() {
        let mut data = two_messages();
        data.extend(field(12, VARINT, &[1])); // a known number with another wire type
        data.extend(field(13, FIXED32, &[0; 4]));
        data.extend([13 << 3 | START_GROUP, 1 << 3, 5, 13 << 3 | END_GROUP]);
        data.extend(field(1, VARINT, &[1])); // a known number with another wire type
        data.extend(field(2, VARINT, &[4]));
        assert_eq!(decode(&data).unwrap().queue, 4);
        assert_eq!(decode(&data).unwrap().topic, "orders");
    }

    #[test]
    fn malformed_bytes_are_refused() {
        let whole = two_messages();
        let deep = [vec![13 << 3 | START_GROUP; 102], vec![13 << 3 | END_GROUP; 102]].concat();
        for bad in [
            &whole[..whole.len() - 1], // cut off
            &[0x00, 0x00],             // field number 0
            &[0x0a, 0x05, b'a'],       // longer than what is left
            &[0x0a, 0x01, 0xff],       // not UTF-8
            &[0x0e, 0x00],             // wire type 6
            &[0x6c],                   // a group ends that has not begun
            &[0x10, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00],
            &[0x6b, 0x74], // a group ends as another one
            &deep,
        ] {
            assert_eq!(decode(bad), Err(Malformed), "{bad:?}");
        }
    }

    #[test]
    fn columns_that_do_not_fit_are_noticed() {
        let data = two_messages();
        let fits = || decode(&data).unwrap();
        let negative = [0, 0, 0, 0, 0, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0];
        for bad in [
            EnqueueRequest { count: 0, ..fits() },
            EnqueueRequest { count: 3, ..fits() },
            EnqueueRequest { count: u32::MAX, ..fits() },
            EnqueueRequest { time: &[0; 8], ..fits() },
            EnqueueRequest { time: &negative, ..fits() },
            EnqueueRequest { relative: &[0, 2], ..fits() },
            EnqueueRequest { relative: &[1], ..fits() },
            EnqueueRequest { size: &[0, 0, 0, 0, 3, 0, 0, 0], ..fits() },
            EnqueueRequest { size: &[0xff; 8], ..fits() },
            EnqueueRequest { key_hash: &[0; 4], ..fits() },
            EnqueueRequest { tag_hash: &[0; 9], ..fits() },
            EnqueueRequest { records: b"ab", ..fits() },
            EnqueueRequest { message_id: &[0; 32], ..fits() },
        ] {
            assert!(!bad.columns_fit(), "{bad:?}");
        }
    }

    #[test]
    fn columns_fit_up_to_their_bounds() {
        let fits = |sizes: &[u32]| {
            let size: Vec<u8> = sizes.iter().flat_map(|size| size.to_le_bytes()).collect();
            let records = vec![0; sizes.iter().sum::<u32>() as usize];
            let (count, time) = (sizes.len() as u32, vec![0; 8 * sizes.len()]);
            let columns = EnqueueRequest { count, time: &time, size: &size, records: &records, ..Default::default() };
            columns.columns_fit()
        };
        let (record, messages) = (MAX_RECORD_BYTES, MAX_MESSAGES as usize);
        assert!(fits(&[record]) && !fits(&[record + 1]));
        assert!(fits(&[record, record]) && !fits(&[record, record, 1]));
        assert!(fits(&vec![1; messages]) && !fits(&vec![1; messages + 1]));
    }

    /// Cases: 20,000, or DECODER_CASES. Nothing may panic, and what is cut off must not be taken for whole columns.
    #[test]
    fn no_input_makes_the_decoder_panic() {
        let cases: u64 = std::env::var("DECODER_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000);
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let valid = two_messages();
        let (mut decoded, mut fitted) = (0u64, 0u64);
        for _ in 0..cases {
            let data = random.mutation_of(&valid);
            if let Ok(request) = decode(&data) {
                decoded += 1;
                if request.columns_fit() {
                    fitted += 1;
                    assert_eq!(request.time.len(), 8 * request.count as usize);
                    assert_eq!(request.size.len(), 4 * request.count as usize);
                }
            }
        }
        assert!(decoded > cases / 20 && fitted > cases / 1000 && decoded < cases, "{decoded} {fitted}");
    }

    /// xorshift64*, so that a failure can be had again.
    struct Random(u64);

    impl Random {
        fn below(&mut self, end: usize) -> usize {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end
        }

        fn mutation_of(&mut self, valid: &[u8]) -> Vec<u8> {
            let mut data = valid.to_vec();
            for _ in 0..1 + self.below(4) {
                let at = self.below(data.len().max(1));
                match self.below(6) {
                    0 => data.truncate(at),
                    1 => data.insert(at.min(data.len()), self.below(256) as u8),
                    2 if at < data.len() => data[at] ^= 1 << self.below(8),
                    3 if at < data.len() => data[at] = self.below(256) as u8,
                    4 if at < data.len() => drop(data.remove(at)),
                    _ => {
                        let tail = data[at.min(data.len())..].to_vec();
                        data.extend(tail);
                    }
                }
            }
            data
        }
    }
}
