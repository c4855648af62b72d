//! An independent reader and writer of file headers, according to the documentation of `src/weight_cache/file.rs`.

use xxhash_rust::xxh3::xxh3_64;

/// Size of the header before the entries.
pub const FIXED_BYTES: usize = 136;

#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    pub layout_version: u32,
    pub image_offset: u64,
    pub image_bytes: u64,
    pub key: [u8; 32],
    pub note: String,
    pub entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// 0 for a matrix, 1 for a vector.
    pub kind: u8,
    pub format: String,
    pub rows: u64,
    pub columns: u64,
    pub offset: u64,
    pub num_bytes: u64,
    pub checksum: u64,
    pub parts: Vec<u32>,
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(count);
        self.0 = rest;
        bytes
    }

    fn number<const N: usize>(&mut self) -> u64 {
        self.bytes(N).iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn text(&mut self, room: usize, count: usize) -> String {
        let bytes = self.bytes(room);
        assert!(bytes[count..].iter().all(|byte| *byte == 0), "zeros behind a text");
        String::from_utf8(bytes[..count].to_vec()).unwrap()
    }
}

impl Header {
    pub fn read(file: &[u8]) -> Self {
        let mut reader = Reader(file);
        assert_eq!(reader.bytes(8), b"TRNKWGT\n");
        let header_bytes = reader.number::<4>() as usize;
        let layout_version = reader.number::<4>() as u32;
        let (image_offset, image_bytes) = (reader.number::<8>(), reader.number::<8>());
        let key = *reader.bytes(32).first_chunk().unwrap();
        let note_bytes = reader.number::<4>() as usize;
        let note = reader.text(64, note_bytes);
        let num_entries = reader.number::<4>();
        let entries = (0..num_entries).map(|_| Entry::read(&mut reader)).collect();
        assert_eq!(reader.0.len(), file.len() - header_bytes + 8);
        assert_eq!(reader.number::<8>(), xxh3_64(&file[..header_bytes - 8]), "checksum of the header");
        assert!(file[header_bytes..image_offset as usize].iter().all(|byte| *byte == 0));
        assert_eq!(image_offset + image_bytes, file.len() as u64);
        Self { layout_version, image_offset, image_bytes, key, note, entries }
    }

    pub fn write(&self, image: &[u8]) -> Vec<u8> {
        let padded = |text: &str, room: usize| {
            let mut bytes = text.as_bytes().to_vec();
            bytes.resize(room, 0);
            bytes
        };
        let mut rest = self.layout_version.to_le_bytes().to_vec();
        rest.extend(self.image_offset.to_le_bytes());
        rest.extend(self.image_bytes.to_le_bytes());
        rest.extend(self.key);
        rest.extend((self.note.len() as u32).to_le_bytes());
        rest.extend(padded(&self.note, 64));
        rest.extend((self.entries.len() as u32).to_le_bytes());
        for entry in &self.entries {
            rest.extend([entry.kind, 0]);
            rest.extend((entry.parts.len() as u16).to_le_bytes());
            rest.extend(padded(&entry.format, 8));
            for number in [entry.rows, entry.columns, entry.offset, entry.num_bytes, entry.checksum] {
                rest.extend(number.to_le_bytes());
            }
            entry.parts.iter().for_each(|part| rest.extend(part.to_le_bytes()));
        }
        let header_bytes = 8 + 4 + rest.len() + 8;
        let mut file = b"TRNKWGT\n".to_vec();
        file.extend((header_bytes as u32).to_le_bytes());
        file.extend(rest);
        file.extend(xxh3_64(&file).to_le_bytes());
        file.resize(self.image_offset as usize, 0);
        file.extend(image);
        file
    }
}

impl Entry {
    fn read(reader: &mut Reader<'_>) -> Self {
        let kind = reader.number::<1>() as u8;
        assert_eq!(reader.number::<1>(), 0);
        let num_parts = reader.number::<2>();
        let name = reader.bytes(8);
        let name_bytes = name.iter().position(|byte| *byte == 0).unwrap_or(8);
        Self {
            kind,
            format: Reader(name).text(8, name_bytes),
            rows: reader.number::<8>(),
            columns: reader.number::<8>(),
            offset: reader.number::<8>(),
            num_bytes: reader.number::<8>(),
            checksum: reader.number::<8>(),
            parts: (0..num_parts).map(|_| reader.number::<4>() as u32).collect(),
        }
    }
}
