//! A message that the client has compressed, inflated while it comes.
//!
//! It has room for the most that it can expand to before its first byte is inflated, so it never waits within.

use std::io::{self, BufRead, ErrorKind, Read};

use bytes::{Buf, Bytes};
use flate2::bufread::{GzDecoder, ZlibDecoder};

/// What a message costs while it is inflated, beside what it expands to: the decoder and one frame of HTTP/2.
const INFLATER_BYTES: usize = 64 << 10;
/// DEFLATE's highest ratio: 258 bytes from 2 bits.
const MOST_PER_BYTE: usize = 1_032;
/// Between two looks at how much is here.
const STEP_BYTES: usize = 16 << 10;

/// The `grpc-encoding` of a call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Encoding {
    Identity,
    Gzip,
    /// zlib's format, as gRPC has it.
    Deflate,
    Unknown,
}

impl Encoding {
    /// What `grpc-accept-encoding` says.
    pub const ACCEPTED: &'static str = "identity,gzip,deflate";

    pub fn of(name: &[u8]) -> Self {
        match name {
            b"identity" => Encoding::Identity,
            b"gzip" => Encoding::Gzip,
            b"deflate" => Encoding::Deflate,
            _ => Encoding::Unknown,
        }
    }
}

/// The room that a compressed message needs while it is received.
pub fn room(compressed: usize, max_size: usize) -> usize {
    most(compressed, max_size) + INFLATER_BYTES
}

fn most(compressed: usize, max_size: usize) -> usize {
    compressed.saturating_mul(MOST_PER_BYTE).min(max_size)
}

/// What came of a message and is not inflated.
struct Feed {
    here: Bytes,
    /// Bytes of the message that are not here.
    left: usize,
}

impl Read for Feed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(into)?;
        self.consume(count);
        Ok(count)
    }
}

impl BufRead for Feed {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.here.is_empty() && self.left > 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(&self.here)
    }

    fn consume(&mut self, count: usize) {
        self.here.advance(count);
    }
}

enum Decoder {
    Gzip(GzDecoder<Feed>),
    Deflate(ZlibDecoder<Feed>),
}

pub enum Step {
    Whole(Vec<u8>),
    /// All that came is inflated.
    NeedsMore,
    /// Others must have a turn first.
    NeedsTurn,
    TooLarge,
    Broken(io::Error),
}

pub struct Inflater {
    decoder: Decoder,
    out: Vec<u8>,
    max_size: usize,
}

impl Inflater {
    /// Of a message of `compressed` bytes, none of which came. encoding: gzip or deflate.
    pub fn new(encoding: Encoding, compressed: usize, max_size: usize) -> Self {
        let feed = Feed { here: Bytes::new(), left: compressed };
        let decoder = if encoding == Encoding::Deflate {
            Decoder::Deflate(ZlibDecoder::new(feed))
        } else {
            Decoder::Gzip(GzDecoder::new(feed))
        };
        // Memory that is not written to costs nothing, so all of it is taken at once; it is never copied to grow.
        let out = Vec::with_capacity(most(compressed, max_size));
        Inflater { decoder, out, max_size }
    }

    /// Take what is the message's of bytes that came; returns how many those were.
    pub fn feed(&mut self, came: &mut Bytes) -> usize {
        let feed = self.feed_mut();
        if !feed.here.is_empty() {
            return 0;
        }
        let count = feed.left.min(came.len());
        feed.here = came.split_to(count);
        feed.left -= count;
        count
    }

    /// Inflate what is here. turn: bytes, in or out, that may be dealt with before others have a turn.
    pub fn step(&mut self, turn: &mut usize) -> Step {
        let mut scratch = [0; STEP_BYTES];
        loop {
            if *turn == 0 {
                return Step::NeedsTurn;
            }
            let here = self.feed_mut().here.len();
            let read = match &mut self.decoder {
                Decoder::Gzip(decoder) => decoder.read(&mut scratch),
                Decoder::Deflate(decoder) => decoder.read(&mut scratch),
            };
            let feed = self.feed_mut();
            let is_consumed = feed.here.is_empty() && feed.left == 0;
            *turn = turn.saturating_sub(here - feed.here.len() + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) if is_consumed => {
                    self.out.shrink_to_fit();
                    return Step::Whole(std::mem::take(&mut self.out));
                }
                Ok(0) => return Step::Broken(io::Error::other("bytes follow its end")),
                Ok(count) if self.out.len() + count > self.max_size => return Step::TooLarge,
                Ok(count) => self.out.extend_from_slice(&scratch[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Step::NeedsMore,
                Err(error) => return Step::Broken(error),
            }
        }
    }

    fn feed_mut(&mut self) -> &mut Feed {
        match &mut self.decoder {
            Decoder::Gzip(decoder) => decoder.get_mut(),
            Decoder::Deflate(decoder) => decoder.get_mut(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};

    use super::*;

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    fn deflate(data: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    /// What becomes of a message that comes in pieces, and how many turns it took.
    fn inflated(encoding: Encoding, message: &[u8], piece: usize, max_size: usize) -> (Step, usize) {
        let mut inflater = Inflater::new(encoding, message.len(), max_size);
        let capacity = inflater.out.capacity();
        let (mut rest, mut turns) = (Bytes::copy_from_slice(message), 0);
        let mut came = Bytes::new();
        loop {
            let mut turn = 1_000;
            turns += 1;
            inflater.feed(&mut came);
            let step = inflater.step(&mut turn);
            assert!(inflater.out.len() <= max_size && [0, capacity].contains(&inflater.out.capacity()));
            match step {
                Step::NeedsTurn => {}
                Step::NeedsMore => came = rest.split_to(piece.min(rest.len())),
                step => return (step, turns),
            }
        }
    }

    fn text(step: Step) -> String {
        match step {
            Step::Broken(error) => error.to_string(),
            Step::TooLarge => "too large".to_owned(),
            _ => "whole".to_owned(),
        }
    }

    #[test]
    fn a_message_is_inflated_in_pieces_of_any_size() {
        let data: Vec<u8> = (0..20_000u32).flat_map(|n| (n * n).to_le_bytes()).collect();
        for (encoding, message) in [(Encoding::Gzip, gzip(&data)), (Encoding::Deflate, deflate(&data))] {
            for piece in [1, 7, 1_000, 1 << 20] {
                let (step, turns) = inflated(encoding, &message, piece, data.len());
                assert!(matches!(step, Step::Whole(whole) if whole == data));
                assert!(turns > data.len() / (1_000 + STEP_BYTES), "others have had turns");
            }
        }
    }

    #[test]
    fn a_bomb_stops_at_the_limit() {
        for (encoding, message) in [(Encoding::Gzip, gzip(&[0; 1 << 20])), (Encoding::Deflate, deflate(&[0; 1 << 20]))]
        {
            let limit = (1 << 20) - 1;
            assert!(matches!(inflated(encoding, &message, 100, limit).0, Step::TooLarge));
            assert!(
                matches!(inflated(encoding, &message, 100, limit + 1).0, Step::Whole(whole) if whole.len() > limit)
            );
        }
    }

    #[test]
    fn the_room_is_enough_for_what_compresses_best() {
        for size in [0, 1, 300, 70_000, 1 << 20, 10 << 20] {
            let message = deflate(&vec![0; size]);
            assert!(most(message.len(), usize::MAX) >= size);
        }
        assert_eq!(room(usize::MAX, 1 << 20), (1 << 20) + INFLATER_BYTES);
    }

    #[test]
    fn broken_messages_are_refused_with_what_is_wrong() {
        for (encoding, whole) in [(Encoding::Gzip, gzip(b"hello hello")), (Encoding::Deflate, deflate(b"hello hello"))]
        {
            for end in 0..whole.len() {
                let (step, _) = inflated(encoding, &whole[..end], 3, 1_000);
                assert!(!text(step).contains("whole"), "cut off after {end}");
            }
            for at in 0..whole.len() {
                let mut bad = whole.clone();
                bad[at] ^= 0xff;
                let step = inflated(encoding, &bad, 100, 1_000).0;
                let unused = encoding == Encoding::Gzip && (4..10).contains(&at); // time, level and system
                assert_eq!(matches!(step, Step::Whole(_)), unused, "byte {at}");
            }
            let longer = [&whole[..], b"x"].concat();
            for piece in [1, 100] {
                assert_eq!(text(inflated(encoding, &longer, piece, 1_000).0), "bytes follow its end");
            }
            let other = if encoding == Encoding::Gzip { Encoding::Deflate } else { Encoding::Gzip };
            assert!(matches!(inflated(other, &whole, 100, 1_000).0, Step::Broken(_)));
        }
    }

    #[test]
    fn a_gzip_header_may_have_a_name() {
        let mut encoder =
            flate2::GzBuilder::new().filename("a").comment("b").extra("c").write(Vec::new(), Compression::fast());
        encoder.write_all(b"hello").unwrap();
        let message = encoder.finish().unwrap();
        assert!(matches!(inflated(Encoding::Gzip, &message, 1, 5).0, Step::Whole(whole) if whole == b"hello"));
    }
}
