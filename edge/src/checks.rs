//! The sums that the store's checks rest on (node/delaynode/store/log/checks.py), of one record or unit and of many.

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
    words.for_each(|word| add(u64::from_le_bytes(word.try_into().expect("eight bytes"))));
    if !tail.is_empty() {
        add(word_of(tail));
    }
    sum
}

/// At most 8 bytes, little-endian.
fn word_of(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// record_sum() of many, which lie in `records` at bytes `begin` and in the log at `offset`. `None`: one lies outside, or
/// the columns differ in length.
pub fn record_sums(records: &[u8], begin: &[i64], offset: &[i64], size: &[i64]) -> Option<Vec<u64>> {
    if begin.len() != offset.len() || begin.len() != size.len() {
        return None;
    }
    let columns = begin.iter().zip(offset).zip(size);
    let sum = |((&begin, &offset), &size): ((&i64, &i64), &i64)| {
        let (begin, size) = (usize::try_from(begin).ok()?, usize::try_from(size).ok()?);
        Some(record_sum(records.get(begin..begin.checked_add(size)?)?, offset as u64))
    };
    columns.map(sum).collect()
}

/// unit_sum() of many, which lie one after the other.
pub fn unit_sums(units: &[u8], factors: &[u8]) -> Vec<u64> {
    units.chunks_exact((factors.len() / 2).max(4)).map(|unit| unit_sum(unit, factors)).collect()
}

/// Of a unit's 32-bit words, each times its factor of 64 bits, mod 2^64.
pub fn unit_sum(unit: &[u8], factors: &[u8]) -> u64 {
    let words = unit.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")));
    let factors = factors.chunks_exact(8).map(|factor| u64::from_le_bytes(factor.try_into().expect("eight bytes")));
    words.zip(factors).fold(0, |sum, (word, factor)| sum.wrapping_add(u64::from(word).wrapping_mul(factor)))
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
    fn many_records_are_summed_each_where_it_lies() {
        let records: Vec<u8> = (1..=60).collect();
        let (begin, offset, size) = ([3, 20, 0], [1003, 8, 16], [17, 40, 0]);
        let one = |i: usize| record_sum(&records[begin[i] as usize..][..size[i] as usize], offset[i] as u64);
        let sums = record_sums(&records, &begin, &offset, &size);
        assert_eq!(sums, Some((0..3).map(one).collect()));
        for (begin, size) in [(-1, 1), (0, -1), (0, 61), (61, 0), (i64::MAX, i64::MAX)] {
            assert_eq!(record_sums(&records, &[begin], &[0], &[size]), None, "{size} bytes at {begin}");
        }
        assert_eq!(record_sums(&records, &begin, &offset[1..], &size), None);
        assert_eq!(record_sums(&records, &begin, &offset, &size[1..]), None);
    }

    #[test]
    fn many_units_are_summed_each_by_itself() {
        let factors: Vec<u8> = [7u64, u64::MAX].iter().flat_map(|factor| factor.to_le_bytes()).collect();
        let units: Vec<u8> = (1..=24).collect();
        assert_eq!(
            unit_sums(&units, &factors),
            units.chunks(8).map(|unit| unit_sum(unit, &factors)).collect::<Vec<_>>()
        );
        assert_eq!(unit_sums(&units, &[]), vec![0; 6]);
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
