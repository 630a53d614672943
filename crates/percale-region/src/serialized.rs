//! The forms of [`RemoteMemory`] and [`RawKey`] in data formats, for the crate serde.
//!
//! In a binary format a value is one string of bytes, its byte form. In a readable format keys are hexadecimal text,
//! because a parser of JSON may change a number of more than 53 bits:
//! `{"key":"00a1b2c3d4e5f607","address":0,"len":4096}`, and `"00a1b2c3d4e5f607"` for a raw key, whose digits are those
//! of its bytes. Both forms are checked like bytes that a peer sent, and errors do not quote a key of this form.

use std::fmt;

use serde_core::de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_core::ser::SerializeStruct as _;
use serde_core::{Deserialize, Deserializer, Serialize, Serializer};

use super::raw_key::{RAW_KEY_BYTES, RawKey};
use super::remote::RemoteMemory;

const NAME: &str = "RemoteMemory";
const FIELDS: &[&str] = &["key", "address", "len"];

impl Serialize for RemoteMemory {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !serializer.is_human_readable() {
            return serializer.serialize_bytes(&self.to_bytes());
        }
        let mut fields = serializer.serialize_struct(NAME, FIELDS.len())?;
        fields.serialize_field("key", &Hex(&self.key.to_be_bytes()))?;
        fields.serialize_field("address", &self.address)?;
        fields.serialize_field("len", &self.len)?;
        fields.end()
    }
}

impl<'de> Deserialize<'de> for RemoteMemory {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            return deserializer.deserialize_struct(NAME, FIELDS, Fields);
        }
        let bytes = deserializer.deserialize_bytes(ShortBytes)?;
        Self::from_bytes(bytes.as_slice()).map_err(Error::custom)
    }
}

impl Serialize for RawKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            Hex(self.as_bytes()).serialize(serializer)
        } else {
            serializer.serialize_bytes(self.as_bytes())
        }
    }
}

impl<'de> Deserialize<'de> for RawKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = if deserializer.is_human_readable() {
            deserializer.deserialize_str(HexText)?
        } else {
            deserializer.deserialize_bytes(ShortBytes)?
        };
        Self::from_bytes(bytes.as_slice()).map_err(Error::custom)
    }
}

/// Up to 32 bytes.
struct Short {
    bytes: [u8; RAW_KEY_BYTES],
    len: usize,
}

impl Short {
    const EMPTY: Self = Self { bytes: [0; RAW_KEY_BYTES], len: 0 };

    fn push<E: Error>(&mut self, byte: u8) -> Result<(), E> {
        let room = self.bytes.get_mut(self.len);
        *room.ok_or_else(|| E::custom(format_args!("more than {RAW_KEY_BYTES} bytes")))? = byte;
        self.len += 1;
        Ok(())
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Reads bytes, in each way in which a format may give them.
struct ShortBytes;

impl<'de> Visitor<'de> for ShortBytes {
    type Value = Short;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {RAW_KEY_BYTES} bytes")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Short, E> {
        let mut short = Short::EMPTY;
        bytes.iter().try_for_each(|byte| short.push(*byte))?;
        Ok(short)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut bytes: A) -> Result<Short, A::Error> {
        let mut short = Short::EMPTY;
        while let Some(byte) = bytes.next_element()? {
            short.push(byte)?;
        }
        Ok(short)
    }
}

/// Bytes as hexadecimal digits, two for each byte.
struct Hex<'a>(&'a [u8]);

impl Serialize for Hex<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Reads hexadecimal digits.
struct HexText;

impl Visitor<'_> for HexText {
    type Value = Short;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hexadecimal digits of at most {RAW_KEY_BYTES} bytes")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Short, E> {
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let mut short = Short::EMPTY;
        for [high, low] in pairs {
            let (Some(high), Some(low)) = (digit(*high), digit(*low)) else {
                return Err(E::custom("a key contains a character that is not a hexadecimal digit"));
            };
            short.push(high << 4 | low)?;
        }
        if rest.is_empty() { Ok(short) } else { Err(E::custom("a key has an odd number of hexadecimal digits")) }
    }
}

/// The 16 digits of the key of a region.
struct Key(u64);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let short = deserializer.deserialize_str(HexText)?;
        let bytes = <[u8; 8]>::try_from(short.as_slice());
        bytes.map(|bytes| Self(u64::from_be_bytes(bytes))).map_err(|_| Error::custom("a key has 16 hexadecimal digits"))
    }
}

/// The name of a field.
enum Field {
    Key,
    Address,
    Len,
    Unknown,
}

impl<'de> Deserialize<'de> for Field {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldName;

        impl Visitor<'_> for FieldName {
            type Value = Field;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a field")
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<Field, E> {
                Ok(match name {
                    "key" => Field::Key,
                    "address" => Field::Address,
                    "len" => Field::Len,
                    _ => Field::Unknown,
                })
            }
        }

        deserializer.deserialize_identifier(FieldName)
    }
}

/// Reads the readable form of [`RemoteMemory`].
struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = RemoteMemory;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the key, the address and the length of remote memory")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RemoteMemory, A::Error> {
        let (mut key, mut address, mut len) = (None::<Key>, None, None);
        while let Some(field) = map.next_key()? {
            let repeated = match field {
                Field::Key => key.replace(map.next_value()?).map(|_| "key"),
                Field::Address => address.replace(map.next_value()?).map(|_: u64| "address"),
                Field::Len => len.replace(map.next_value()?).map(|_: u64| "len"),
                Field::Unknown => {
                    map.next_value::<IgnoredAny>()?;
                    None
                }
            };
            if let Some(name) = repeated {
                return Err(Error::duplicate_field(name));
            }
        }
        let Key(key) = key.ok_or_else(|| Error::missing_field("key"))?;
        let address = address.ok_or_else(|| Error::missing_field("address"))?;
        let len = len.ok_or_else(|| Error::missing_field("len"))?;
        // The byte form has the same checks.
        RemoteMemory::from_bytes(&RemoteMemory { key, address, len }.to_bytes()).map_err(Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: RemoteMemory = RemoteMemory { key: 0xF807_0605_0403_0201, address: 1 << 60, len: 4096 };

    fn raw_keys() -> [RawKey; 2] {
        let bytes: [u8; RAW_KEY_BYTES] = std::array::from_fn(|at| 0xF0 ^ at as u8);
        [&bytes[..], &bytes[..8]].map(|bytes| RawKey::from_bytes(bytes).unwrap())
    }

    #[test]
    fn json_of_remote_memory_is_an_object_with_a_hexadecimal_key() {
        let json = r#"{"key":"f807060504030201","address":1152921504606846976,"len":4096}"#;
        assert_eq!(serde_json::to_string(&MEMORY).unwrap(), json);
        assert_eq!(serde_json::from_str::<RemoteMemory>(json).unwrap(), MEMORY);
        let other_order = r#"{"len":4096,"more":[1],"address":1152921504606846976,"key":"F807060504030201"}"#;
        assert_eq!(serde_json::from_str::<RemoteMemory>(other_order).unwrap(), MEMORY);
    }

    #[test]
    fn json_of_a_raw_key_is_its_bytes_in_hexadecimal() {
        let [long, short] = raw_keys();
        assert_eq!(serde_json::to_string(&short).unwrap(), r#""f0f1f2f3f4f5f6f7""#);
        for key in [long, short] {
            let json = serde_json::to_string(&key).unwrap();
            assert_eq!(serde_json::from_str::<RawKey>(&json).unwrap(), key);
        }
    }

    #[test]
    fn binary_format_has_the_byte_form() {
        let bytes = postcard::to_allocvec(&MEMORY).unwrap();
        assert_eq!(bytes.split_first().unwrap(), (&24, &MEMORY.to_bytes()[..]));
        assert_eq!(postcard::from_bytes::<RemoteMemory>(&bytes), Ok(MEMORY));
        for key in raw_keys() {
            let bytes = postcard::to_allocvec(&key).unwrap();
            assert_eq!(&bytes[1..], key.as_bytes());
            assert_eq!(postcard::from_bytes::<RawKey>(&bytes), Ok(key));
        }
    }

    #[test]
    fn invalid_values_are_rejected_without_disclosing_a_key() {
        for (json, reason) in [
            (r#"{"key":"f807060504030201","address":0}"#, "missing field `len`"),
            (r#"{"key":"f807060504030201","address":0,"len":1,"len":2}"#, "duplicate field `len`"),
            (r#"{"key":"f8070605040302","address":0,"len":1}"#, "16 hexadecimal digits"),
            (r#"{"key":"f80706050403020","address":0,"len":1}"#, "odd number"),
            (r#"{"key":"+807060504030201","address":0,"len":1}"#, "not a hexadecimal digit"),
            (r#"{"key":"f807060504030201","address":18446744073709551615,"len":2}"#, "exceed the address space"),
            (r#"{"key":"f807060504030201","address":-1,"len":2}"#, "integer `-1`"),
        ] {
            let error = serde_json::from_str::<RemoteMemory>(json).unwrap_err().to_string();
            assert!(error.contains(reason) && !error.contains("807060504"), "{json}: {error}");
        }
        for json in [r#""""#, r#""f0f1""#, "7", &format!(r#""{}""#, "ab".repeat(33))] {
            serde_json::from_str::<RawKey>(json).unwrap_err();
        }
        let bytes = MEMORY.to_bytes();
        assert!(postcard::from_bytes::<RemoteMemory>(&postcard::to_allocvec(&bytes[..23]).unwrap()).is_err());
        let wraps = RemoteMemory { address: u64::MAX, ..MEMORY };
        assert!(postcard::from_bytes::<RemoteMemory>(&postcard::to_allocvec(&wraps).unwrap()).is_err());
    }
}
