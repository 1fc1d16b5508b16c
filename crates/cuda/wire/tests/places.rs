//! Places behind a message.

use cuda_wire::{AppendedPlaces, Wire};

#[test]
fn places_are_read_as_they_were_written_and_none_takes_no_bytes() {
    for places in [vec![], vec![0], vec![7, 1, u32::MAX]] {
        let bytes = AppendedPlaces(places.clone()).to_bytes();
        assert_eq!(bytes.is_empty(), places.is_empty());
        assert_eq!(AppendedPlaces::from_bytes(&bytes), Ok(AppendedPlaces(places)));
    }
    let empty = Vec::<u32>::new().to_bytes();
    assert!(AppendedPlaces::from_bytes(&empty).is_err(), "two encodings would mean the same");
}
