use trunkline_router::http::tls::validity::validity;

/// The tags of UTCTime and GeneralizedTime in X.690.
const UTC: u8 = 0x17;
const GENERALIZED: u8 = 0x18;

/// Encodes a value in DER. A length of 128 or more is preceded by the number of its bytes.
fn der(tag: u8, contents: &[u8]) -> Vec<u8> {
    let length = match contents.len() {
        length @ ..128 => vec![length as u8],
        length => vec![0x81, u8::try_from(length).unwrap()],
    };
    [&[tag], &length[..], contents].concat()
}

/// Returns the fields of RFC 5280, section 4.1 up to the validity period, and one more.
fn certificate(from: (u8, &str), until: (u8, &str)) -> Vec<u8> {
    let version = der(0xa0, &der(0x02, &[2]));
    let serial_number = der(0x02, &[1]);
    let algorithm = der(0x30, &der(0x06, &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02]));
    let issuer = der(0x30, &[b'x'; 130]);
    let validity = der(0x30, &[der(from.0, from.1.as_bytes()), der(until.0, until.1.as_bytes())].concat());
    let subject = der(0x30, &[]);
    let signed = der(0x30, &[version, serial_number, algorithm.clone(), issuer, validity, subject].concat());
    der(0x30, &[signed, algorithm, der(0x03, &[0])].concat())
}

#[test]
fn both_time_formats_are_read() {
    let read = |from, until| validity(&certificate(from, until)).unwrap();
    assert_eq!(read((UTC, "700101000000Z"), (UTC, "260131000000Z")), 0..=1_769_817_600);
    let (leap_day, day_after_none) = ((UTC, "000229000000Z"), (GENERALIZED, "21000301000000Z"));
    assert_eq!(read(leap_day, day_after_none), 951_782_400..=4_107_542_400);
    // Years from 2050 have four digits. Two-digit years from 50 belong to the 20th century.
    let (last, first) = ((UTC, "491231235959Z"), (GENERALIZED, "20500101000000Z"));
    assert_eq!(read(last, first), 2_524_607_999..=2_524_608_000);
    assert_eq!(read((UTC, "500101000000Z"), (UTC, "991231000000Z")), -631_152_000..=946_598_400);
}

#[test]
fn other_time_formats_are_refused() {
    for time in [
        (UTC, "700101000000"),
        (UTC, "7001010000Z"),
        (UTC, "700101000000+0100"),
        (UTC, "7001010000000Z"),
        (UTC, "70010100000xZ"),
        (GENERALIZED, "20500101000000.5Z"),
        (0x16, "700101000000Z"),
    ] {
        assert_eq!(validity(&certificate((UTC, "700101000000Z"), time)), None, "{time:?}");
    }
}

#[test]
fn truncated_or_changed_certificates_never_panic() {
    let whole = certificate((UTC, "200101000000Z"), (UTC, "300101000000Z"));
    assert!(validity(&whole).is_some());
    for length in 0..whole.len() {
        assert_eq!(validity(&whole[..length]), None, "{length} bytes");
    }
    for index in 0..whole.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut other = whole.clone();
            other[index] ^= flip;
            validity(&other);
        }
    }
}
