//! Protobuf's wire format: tags, varints and lengths, without types.

use super::ProtobufError;

/// The content of a field.
#[derive(Clone, Copy, Debug)]
pub(super) enum Payload<'b> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'b [u8]),
    /// Four bytes, which no Kubernetes type uses.
    Fixed32,
}

/// Reads the fields of one message.
pub(super) struct Reader<'b> {
    rest: &'b [u8],
}

impl<'b> Reader<'b> {
    pub(super) fn new(bytes: &'b [u8]) -> Reader<'b> {
        Reader { rest: bytes }
    }

    /// The next field's number and content; `None` at the end of the message.
    pub(super) fn next(&mut self) -> Result<Option<(u32, Payload<'b>)>, ProtobufError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).map_err(|_| ProtobufError::Malformed("field number out of range"))?;
        if number == 0 {
            return Err(ProtobufError::Malformed("field number zero"));
        }
        let payload = match tag & 7 {
            0 => Payload::Varint(self.varint()?),
            1 => {
                let bytes = self.take(8)?;
                Payload::Fixed64(u64::from_le_bytes(bytes.try_into().unwrap_or_default()))
            }
            2 => {
                let length = self.varint()?;
                let length = usize::try_from(length).map_err(|_| ProtobufError::Malformed("length out of range"))?;
                Payload::Bytes(self.take(length)?)
            }
            5 => {
                self.take(4)?;
                Payload::Fixed32
            }
            _ => return Err(ProtobufError::Malformed("unknown wire type")),
        };
        Ok(Some((number, payload)))
    }

    fn varint(&mut self) -> Result<u64, ProtobufError> {
        let mut value = 0_u64;
        for (index, byte) in self.rest.iter().enumerate().take(10) {
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                self.rest = &self.rest[index + 1..];
                return Ok(value);
            }
        }
        Err(ProtobufError::Malformed("number without an end"))
    }

    fn take(&mut self, length: usize) -> Result<&'b [u8], ProtobufError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(ProtobufError::Malformed("unexpected end"))?;
        self.rest = rest;
        Ok(taken)
    }
}

/// Writes the fields of a message.
#[derive(Default)]
pub(super) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(super) fn finish(self) -> Vec<u8> {
        self.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn varint(&mut self, number: u16, value: u64) {
        self.tag(number, 0);
        self.number(value);
    }

    pub(super) fn fixed64(&mut self, number: u16, value: u64) {
        self.tag(number, 1);
        self.raw(&value.to_le_bytes());
    }

    pub(super) fn bytes(&mut self, number: u16, bytes: &[u8]) {
        self.opening(number, bytes.len());
        self.raw(bytes);
    }

    /// Writes the tag and the length of a field.
    pub(super) fn opening(&mut self, number: u16, length: usize) {
        self.tag(number, 2);
        self.number(length as u64);
    }

    /// Writes a nested message. Its length is known only afterwards: one byte is reserved for it, and the message is
    /// moved if that is not enough.
    pub(super) fn message(
        &mut self,
        number: u16,
        write: impl FnOnce(&mut Writer) -> Result<(), ProtobufError>,
    ) -> Result<(), ProtobufError> {
        self.tag(number, 2);
        let place = self.bytes.len();
        self.bytes.push(0);
        write(self)?;
        let end = self.bytes.len();
        let length = end - place - 1;
        let digits = (usize::BITS - length.leading_zeros()).div_ceil(7).max(1) as usize;
        if digits > 1 {
            self.bytes.resize(end + digits - 1, 0);
            self.bytes.copy_within(place + 1..end, place + digits);
        }
        for (digit, byte) in self.bytes[place..place + digits].iter_mut().enumerate() {
            let more = if digit + 1 < digits { 0x80 } else { 0 };
            *byte = (length >> (7 * digit) & 0x7f) as u8 | more;
        }
        Ok(())
    }

    fn tag(&mut self, number: u16, wire_type: u64) {
        self.number(u64::from(number) << 3 | wire_type);
    }

    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }
}
