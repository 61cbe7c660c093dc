//! Answers to the program's queries about memory that memlab backs.

use super::movable_memory::MOVABLE_MEMORY;

/// Returns true if an address is in memory from a `cuMemAlloc` that memlab answered.
pub fn is_backed(address: u64) -> bool {
    MOVABLE_MEMORY.lock().mapping_at(address).is_some_and(|(_, mapping)| mapping.allocation.is_some())
}

/// Answers `cuMemGetAddressRange` for memory in several pieces, which the driver treats as several ranges.
pub fn range(address: u64) -> Option<(u64, u64)> {
    let memory = MOVABLE_MEMORY.lock();
    let (start, mapping) = memory.mapping_at(address)?;
    Some((start, mapping.bytes_asked_for()))
}

/// Value of an address's attribute, either C's `int` or 8 bytes.
pub enum AttributeValue {
    Number(i32),
    Word(u64),
}

/// Answers `cuPointerGetAttribute` for memory that memlab backs; `None` leaves it to the driver.
///
/// memlab answers where the driver's result would depend on the current location of the bytes, on the number of pieces, or
/// on the caller that allocated them.
pub fn attribute(address: u64, attribute: i32) -> Option<AttributeValue> {
    /// `CUpointer_attribute`
    const CONTEXT: i32 = 1;
    const MEMORY_TYPE: i32 = 2;
    const DEVICE_ORDINAL: i32 = 9;
    const RANGE_START: i32 = 11;
    const RANGE_BYTES: i32 = 12;
    const MAPPING_BYTES: i32 = 18;
    const MAPPING_START: i32 = 19;
    /// `CU_MEMORYTYPE_DEVICE`
    const DEVICE: i32 = 2;
    let memory = MOVABLE_MEMORY.lock();
    let (start, mapping) = memory.mapping_at(address)?;
    match attribute {
        CONTEXT => mapping.allocation.map(|allocation| AttributeValue::Word(allocation.context)),
        MEMORY_TYPE => Some(AttributeValue::Number(DEVICE)),
        DEVICE_ORDINAL => {
            memory.physicals.get(&mapping.physical).map(|physical| AttributeValue::Number(physical.device))
        }
        RANGE_START | MAPPING_START => Some(AttributeValue::Word(start)),
        RANGE_BYTES | MAPPING_BYTES => Some(AttributeValue::Word(mapping.bytes_asked_for())),
        _ => None,
    }
}
