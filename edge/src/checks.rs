//! The sums that the store's checks rest on (node/delaynode/store/log/checks.py), for a record or a unit at a time.

/// Of the 8-byte words of the log's grid that a record lies in, other bytes 0: (w ^ w >> 32) * (2 i + 1), mod 2^64,
/// where word i begins at log offset 8 i.
pub fn record_sum(record: &[u8], offset: u64) -> u64 {
    let begins = (offset & 7) as usize; // within its first word
    let (mut sum, mut factor) = (0u64, 2 * (offset >> 3) + 1);
    let mut add = |word: u64| {
        sum = sum.wrapping_add((word ^ (word >> 32)).wrapping_mul(factor));
        factor = factor.wrapping_add(2);
    };
    let (head, rest) = record.split_at(record.len().min((8 - begins) % 8));
    if !head.is_empty() {
        add(word_of(head) << (8 * begins));
    }
    let words = rest.chunks_exact(8);
    let tail = words.remainder();
    words.for_each(|word| add(word_of(word)));
    if !tail.is_empty() {
        add(word_of(tail));
    }
    sum
}

/// At most 8 bytes, little-endian.
fn word_of(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// Of a unit's 32-bit words, each times its factor of 64 bits, mod 2^64.
pub fn unit_sum(unit: &[u8], factors: &[u8]) -> u64 {
    let pairs = unit.chunks_exact(4).zip(factors.chunks_exact(8));
    pairs.fold(0, |sum, (word, factor)| sum.wrapping_add(word_of(word).wrapping_mul(word_of(factor))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_summed_on_the_grid_of_the_log() {
        let record: Vec<u8> = (1..=40).collect();
        for offset in 0..24u64 {
            for length in 0..=record.len() {
                let mut grid = [0; 80];
                grid[offset as usize..][..length].copy_from_slice(&record[..length]);
                let words = grid.chunks_exact(8).zip(0u64..);
                let expected = words.fold(0u64, |sum, (word, i)| {
                    let word = u64::from_le_bytes(word.try_into().unwrap());
                    sum.wrapping_add((word ^ word >> 32).wrapping_mul(2 * i + 1))
                });
                assert_eq!(record_sum(&record[..length], offset), expected, "{length} bytes at {offset}");
            }
        }
    }

    #[test]
    fn a_unit_is_summed_by_its_factors() {
        let (unit, factors) = ([3u32, u32::MAX, 5], [7u64, u64::MAX, 1 << 63]);
        let bytes: Vec<u8> = unit.iter().flat_map(|word| word.to_le_bytes()).collect();
        let wide: Vec<u8> = factors.iter().flat_map(|factor| factor.to_le_bytes()).collect();
        let products = unit.iter().zip(factors).map(|(&word, factor)| u64::from(word).wrapping_mul(factor));
        assert_eq!(unit_sum(&bytes, &wide), products.fold(0, u64::wrapping_add));
    }
}
