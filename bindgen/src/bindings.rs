// Made by `make bindings` from NVIDIA's headers: declarations only. Not to be edited.

#[repr(C)]
#[derive(Copy, Clone, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct __BindgenBitfieldUnit<Storage> {
    storage: Storage,
}
impl<Storage> __BindgenBitfieldUnit<Storage> {
    #[inline]
    pub const fn new(storage: Storage) -> Self {
        Self { storage }
    }
}
impl<Storage> __BindgenBitfieldUnit<Storage>
where
    Storage: AsRef<[u8]> + AsMut<[u8]>,
{
    #[inline]
    fn extract_bit(byte: u8, index: usize) -> bool {
        let bit_index = if cfg!(target_endian = "big") { 7 - (index % 8) } else { index % 8 };
        let mask = 1 << bit_index;
        byte & mask == mask
    }
    #[inline]
    pub fn get_bit(&self, index: usize) -> bool {
        debug_assert!(index / 8 < self.storage.as_ref().len());
        let byte_index = index / 8;
        let byte = self.storage.as_ref()[byte_index];
        Self::extract_bit(byte, index)
    }
    #[inline]
    pub unsafe fn raw_get_bit(this: *const Self, index: usize) -> bool {
        debug_assert!(index / 8 < core::mem::size_of::<Storage>());
        let byte_index = index / 8;
        let byte = unsafe { *(core::ptr::addr_of!((*this).storage) as *const u8).offset(byte_index as isize) };
        Self::extract_bit(byte, index)
    }
    #[inline]
    fn change_bit(byte: u8, index: usize, val: bool) -> u8 {
        let bit_index = if cfg!(target_endian = "big") { 7 - (index % 8) } else { index % 8 };
        let mask = 1 << bit_index;
        if val { byte | mask } else { byte & !mask }
    }
    #[inline]
    pub fn set_bit(&mut self, index: usize, val: bool) {
        debug_assert!(index / 8 < self.storage.as_ref().len());
        let byte_index = index / 8;
        let byte = &mut self.storage.as_mut()[byte_index];
        *byte = Self::change_bit(*byte, index, val);
    }
    #[inline]
    pub unsafe fn raw_set_bit(this: *mut Self, index: usize, val: bool) {
        debug_assert!(index / 8 < core::mem::size_of::<Storage>());
        let byte_index = index / 8;
        let byte = unsafe { (core::ptr::addr_of_mut!((*this).storage) as *mut u8).offset(byte_index as isize) };
        unsafe { *byte = Self::change_bit(*byte, index, val) };
    }
    #[inline]
    pub fn get(&self, bit_offset: usize, bit_width: u8) -> u64 {
        debug_assert!(bit_width <= 64);
        debug_assert!(bit_offset / 8 < self.storage.as_ref().len());
        debug_assert!((bit_offset + (bit_width as usize) + 7) / 8 <= self.storage.as_ref().len());
        if bit_width == 0 {
            return 0;
        }
        let mut val = 0u64;
        let storage = self.storage.as_ref();
        let start_byte = bit_offset / 8;
        let bit_shift = bit_offset % 8;
        let bytes_needed = (bit_width as usize + bit_shift + 7) / 8;
        if cfg!(target_endian = "big") {
            for i in 0..bytes_needed {
                val |= (storage[start_byte + i].reverse_bits() as u64) << (i * 8);
            }
        } else {
            for i in 0..bytes_needed {
                val |= (storage[start_byte + i] as u64) << (i * 8);
            }
        }
        val >>= bit_shift;
        if bit_width < 64 {
            val &= (1u64 << bit_width) - 1;
        }
        if cfg!(target_endian = "big") {
            val = val.reverse_bits() >> (64 - bit_width as usize);
        }
        val
    }
    #[inline]
    pub unsafe fn raw_get(this: *const Self, bit_offset: usize, bit_width: u8) -> u64 {
        debug_assert!(bit_width <= 64);
        debug_assert!(bit_offset / 8 < core::mem::size_of::<Storage>());
        debug_assert!((bit_offset + (bit_width as usize) + 7) / 8 <= core::mem::size_of::<Storage>());
        if bit_width == 0 {
            return 0;
        }
        let mut val = 0u64;
        let start_byte = bit_offset / 8;
        let bit_shift = bit_offset % 8;
        let bytes_needed = (bit_width as usize + bit_shift + 7) / 8;
        let storage_ptr = unsafe { core::ptr::addr_of!((*this).storage) as *const u8 };
        if cfg!(target_endian = "big") {
            for i in 0..bytes_needed {
                let byte = unsafe { *storage_ptr.add(start_byte + i) };
                val |= (byte.reverse_bits() as u64) << (i * 8);
            }
        } else {
            for i in 0..bytes_needed {
                let byte = unsafe { *storage_ptr.add(start_byte + i) };
                val |= (byte as u64) << (i * 8);
            }
        }
        val >>= bit_shift;
        if bit_width < 64 {
            val &= (1u64 << bit_width) - 1;
        }
        if cfg!(target_endian = "big") {
            val = val.reverse_bits() >> (64 - bit_width as usize);
        }
        val
    }
    #[inline]
    pub fn set(&mut self, bit_offset: usize, bit_width: u8, val: u64) {
        debug_assert!(bit_width <= 64);
        debug_assert!(bit_offset / 8 < self.storage.as_ref().len());
        debug_assert!((bit_offset + (bit_width as usize) + 7) / 8 <= self.storage.as_ref().len());
        if bit_width == 0 {
            return;
        }
        let mut val = val;
        if bit_width < 64 {
            val &= (1u64 << bit_width) - 1;
        }
        if cfg!(target_endian = "big") {
            val = val.reverse_bits() >> (64 - bit_width as usize);
        }
        let storage = self.storage.as_mut();
        let start_byte = bit_offset / 8;
        let bit_shift = bit_offset % 8;
        let bytes_needed = (bit_width as usize + bit_shift + 7) / 8;
        val <<= bit_shift;
        let field_mask = if bit_width as usize + bit_shift >= 64 {
            !0u64 << bit_shift
        } else {
            ((1u64 << bit_width) - 1) << bit_shift
        };
        for i in 0..bytes_needed {
            let byte_val = (val >> (i * 8)) as u8;
            let byte_mask = (field_mask >> (i * 8)) as u8;
            if cfg!(target_endian = "big") {
                let byte = storage[start_byte + i].reverse_bits();
                let new_byte = (byte & !byte_mask) | (byte_val & byte_mask);
                storage[start_byte + i] = new_byte.reverse_bits();
            } else {
                storage[start_byte + i] = (storage[start_byte + i] & !byte_mask) | (byte_val & byte_mask);
            }
        }
    }
    #[inline]
    pub unsafe fn raw_set(this: *mut Self, bit_offset: usize, bit_width: u8, val: u64) {
        debug_assert!(bit_width <= 64);
        debug_assert!(bit_offset / 8 < core::mem::size_of::<Storage>());
        debug_assert!((bit_offset + (bit_width as usize) + 7) / 8 <= core::mem::size_of::<Storage>());
        if bit_width == 0 {
            return;
        }
        let mut val = val;
        if bit_width < 64 {
            val &= (1u64 << bit_width) - 1;
        }
        if cfg!(target_endian = "big") {
            val = val.reverse_bits() >> (64 - bit_width as usize);
        }
        let start_byte = bit_offset / 8;
        let bit_shift = bit_offset % 8;
        let bytes_needed = (bit_width as usize + bit_shift + 7) / 8;
        val <<= bit_shift;
        let field_mask = if bit_width as usize + bit_shift >= 64 {
            !0u64 << bit_shift
        } else {
            ((1u64 << bit_width) - 1) << bit_shift
        };
        let storage_ptr = unsafe { core::ptr::addr_of_mut!((*this).storage) as *mut u8 };
        for i in 0..bytes_needed {
            let byte_val = (val >> (i * 8)) as u8;
            let byte_mask = (field_mask >> (i * 8)) as u8;
            let byte_ptr = unsafe { storage_ptr.add(start_byte + i) };
            if cfg!(target_endian = "big") {
                let byte = unsafe { (*byte_ptr).reverse_bits() };
                let new_byte = (byte & !byte_mask) | (byte_val & byte_mask);
                unsafe { *byte_ptr = new_byte.reverse_bits() };
            } else {
                unsafe { *byte_ptr = (*byte_ptr & !byte_mask) | (byte_val & byte_mask) };
            }
        }
    }
}
#[doc = " Const-generic methods for efficient bitfield access when offset and width"]
#[doc = " are known at compile time."]
impl<const N: usize> __BindgenBitfieldUnit<[u8; N]> {
    #[doc = " Get a field using const generics for compile-time optimization."]
    #[doc = " Uses native word size operations when the field fits in usize."]
    #[inline]
    pub const fn get_const<const BIT_OFFSET: usize, const BIT_WIDTH: u8>(&self) -> u64 {
        debug_assert!(BIT_WIDTH <= 64);
        debug_assert!(BIT_OFFSET / 8 < N);
        debug_assert!((BIT_OFFSET + (BIT_WIDTH as usize) + 7) / 8 <= N);
        if BIT_WIDTH == 0 {
            return 0;
        }
        let start_byte = BIT_OFFSET / 8;
        let bit_shift = BIT_OFFSET % 8;
        let bytes_needed = (BIT_WIDTH as usize + bit_shift + 7) / 8;
        if BIT_WIDTH as usize + bit_shift <= usize::BITS as usize {
            let mut val = 0usize;
            if cfg!(target_endian = "big") {
                let mut i = 0;
                while i < bytes_needed {
                    val |= (self.storage[start_byte + i].reverse_bits() as usize) << (i * 8);
                    i += 1;
                }
            } else {
                let mut i = 0;
                while i < bytes_needed {
                    val |= (self.storage[start_byte + i] as usize) << (i * 8);
                    i += 1;
                }
            }
            val >>= bit_shift;
            if (BIT_WIDTH as u32) < usize::BITS {
                val &= (1usize << BIT_WIDTH) - 1;
            }
            if cfg!(target_endian = "big") {
                val = val.reverse_bits() >> (usize::BITS as usize - BIT_WIDTH as usize);
            }
            val as u64
        } else {
            let mut val = 0u64;
            if cfg!(target_endian = "big") {
                let mut i = 0;
                while i < bytes_needed {
                    val |= (self.storage[start_byte + i].reverse_bits() as u64) << (i * 8);
                    i += 1;
                }
            } else {
                let mut i = 0;
                while i < bytes_needed {
                    val |= (self.storage[start_byte + i] as u64) << (i * 8);
                    i += 1;
                }
            }
            val >>= bit_shift;
            if BIT_WIDTH < 64 {
                val &= (1u64 << BIT_WIDTH) - 1;
            }
            if cfg!(target_endian = "big") {
                val = val.reverse_bits() >> (64 - BIT_WIDTH as usize);
            }
            val
        }
    }
    #[doc = " Set a field using const generics for compile-time optimization."]
    #[doc = " Uses native word size operations when the field fits in usize."]
    #[inline]
    pub fn set_const<const BIT_OFFSET: usize, const BIT_WIDTH: u8>(&mut self, val: u64) {
        debug_assert!(BIT_WIDTH <= 64);
        debug_assert!(BIT_OFFSET / 8 < N);
        debug_assert!((BIT_OFFSET + (BIT_WIDTH as usize) + 7) / 8 <= N);
        if BIT_WIDTH == 0 {
            return;
        }
        let start_byte = BIT_OFFSET / 8;
        let bit_shift = BIT_OFFSET % 8;
        let bytes_needed = (BIT_WIDTH as usize + bit_shift + 7) / 8;
        if BIT_WIDTH as usize + bit_shift <= usize::BITS as usize {
            let mut val = val as usize;
            if (BIT_WIDTH as u32) < usize::BITS {
                val &= (1usize << BIT_WIDTH) - 1;
            }
            if cfg!(target_endian = "big") {
                val = val.reverse_bits() >> (usize::BITS as usize - BIT_WIDTH as usize);
            }
            val <<= bit_shift;
            let field_mask = if BIT_WIDTH as usize + bit_shift >= usize::BITS as usize {
                !0usize << bit_shift
            } else {
                ((1usize << BIT_WIDTH) - 1) << bit_shift
            };
            let mut i = 0;
            while i < bytes_needed {
                let byte_val = (val >> (i * 8)) as u8;
                let byte_mask = (field_mask >> (i * 8)) as u8;
                if cfg!(target_endian = "big") {
                    let byte = self.storage[start_byte + i].reverse_bits();
                    let new_byte = (byte & !byte_mask) | (byte_val & byte_mask);
                    self.storage[start_byte + i] = new_byte.reverse_bits();
                } else {
                    self.storage[start_byte + i] = (self.storage[start_byte + i] & !byte_mask) | (byte_val & byte_mask);
                }
                i += 1;
            }
        } else {
            let mut val = val;
            if BIT_WIDTH < 64 {
                val &= (1u64 << BIT_WIDTH) - 1;
            }
            if cfg!(target_endian = "big") {
                val = val.reverse_bits() >> (64 - BIT_WIDTH as usize);
            }
            val <<= bit_shift;
            let field_mask = if BIT_WIDTH as usize + bit_shift >= 64 {
                !0u64 << bit_shift
            } else {
                ((1u64 << BIT_WIDTH) - 1) << bit_shift
            };
            let mut i = 0;
            while i < bytes_needed {
                let byte_val = (val >> (i * 8)) as u8;
                let byte_mask = (field_mask >> (i * 8)) as u8;
                if cfg!(target_endian = "big") {
                    let byte = self.storage[start_byte + i].reverse_bits();
                    let new_byte = (byte & !byte_mask) | (byte_val & byte_mask);
                    self.storage[start_byte + i] = new_byte.reverse_bits();
                } else {
                    self.storage[start_byte + i] = (self.storage[start_byte + i] & !byte_mask) | (byte_val & byte_mask);
                }
                i += 1;
            }
        }
    }
    #[doc = " Raw pointer get using const generics for compile-time optimization."]
    #[doc = " Uses native word size operations when the field fits in usize."]
    #[inline]
    pub const unsafe fn raw_get_const<const BIT_OFFSET: usize, const BIT_WIDTH: u8>(this: *const Self) -> u64 {
        debug_assert!(BIT_WIDTH <= 64);
        debug_assert!(BIT_OFFSET / 8 < N);
        debug_assert!((BIT_OFFSET + (BIT_WIDTH as usize) + 7) / 8 <= N);
        if BIT_WIDTH == 0 {
            return 0;
        }
        let start_byte = BIT_OFFSET / 8;
        let bit_shift = BIT_OFFSET % 8;
        let bytes_needed = (BIT_WIDTH as usize + bit_shift + 7) / 8;
        let storage_ptr = unsafe { core::ptr::addr_of!((*this).storage) as *const u8 };
        if BIT_WIDTH as usize + bit_shift <= usize::BITS as usize {
            let mut val = 0usize;
            if cfg!(target_endian = "big") {
                let mut i = 0;
                while i < bytes_needed {
                    let byte = unsafe { *storage_ptr.add(start_byte + i) };
                    val |= (byte.reverse_bits() as usize) << (i * 8);
                    i += 1;
                }
            } else {
                let mut i = 0;
                while i < bytes_needed {
                    let byte = unsafe { *storage_ptr.add(start_byte + i) };
                    val |= (byte as usize) << (i * 8);
                    i += 1;
                }
            }
            val >>= bit_shift;
            if (BIT_WIDTH as u32) < usize::BITS {
                val &= (1usize << BIT_WIDTH) - 1;
            }
            if cfg!(target_endian = "big") {
                val = val.reverse_bits() >> (usize::BITS as usize - BIT_WIDTH as usize);
            }
            val as u64
        } else {
            let mut val = 0u64;
            if cfg!(target_endian = "big") {
                let mut i = 0;
                while i < bytes_needed {
                    let byte = unsafe { *storage_ptr.add(start_byte + i) };
                    val |= (byte.reverse_bits() as u64) << (i * 8);
                    i += 1;
                }
            } else {
                let mut i = 0;
                while i < bytes_needed {
                    let byte = unsafe { *storage_ptr.add(start_byte + i) };
                    val |= (byte as u64) << (i * 8);
                    i += 1;
                }
            }
            val >>= bit_shift;
            if BIT_WIDTH < 64 {
                val &= (1u64 << BIT_WIDTH) - 1;
            }
            if cfg!(target_endian = "big") {
                val = val.reverse_bits() >> (64 - BIT_WIDTH as usize);
            }
            val
        }
    }
    #[doc = " Raw pointer set using const generics for compile-time optimization."]
    #[doc = " Uses native word size operations when the field fits in usize."]
    #[inline]
    pub unsafe fn raw_set_const<const BIT_OFFSET: usize, const BIT_WIDTH: u8>(this: *mut Self, val: u64) {
        debug_assert!(BIT_WIDTH <= 64);
        debug_assert!(BIT_OFFSET / 8 < N);
        debug_assert!((BIT_OFFSET + (BIT_WIDTH as usize) + 7) / 8 <= N);
        if BIT_WIDTH == 0 {
            return;
        }
        let start_byte = BIT_OFFSET / 8;
        let bit_shift = BIT_OFFSET % 8;
        let bytes_needed = (BIT_WIDTH as usize + bit_shift + 7) / 8;
        let storage_ptr = this.cast::<[u8; N]>().cast::<u8>();
        if BIT_WIDTH as usize + bit_shift <= usize::BITS as usize {
            let mut val = val as usize;
            if (BIT_WIDTH as u32) < usize::BITS {
                val &= (1usize << BIT_WIDTH) - 1;
            }
            if cfg!(target_endian = "big") {
                val = val.reverse_bits() >> (usize::BITS as usize - BIT_WIDTH as usize);
            }
            val <<= bit_shift;
            let field_mask = if BIT_WIDTH as usize + bit_shift >= usize::BITS as usize {
                !0usize << bit_shift
            } else {
                ((1usize << BIT_WIDTH) - 1) << bit_shift
            };
            let mut i = 0;
            while i < bytes_needed {
                let byte_val = (val >> (i * 8)) as u8;
                let byte_mask = (field_mask >> (i * 8)) as u8;
                let byte_ptr = unsafe { storage_ptr.add(start_byte + i) };
                if cfg!(target_endian = "big") {
                    let byte = unsafe { (*byte_ptr).reverse_bits() };
                    let new_byte = (byte & !byte_mask) | (byte_val & byte_mask);
                    unsafe { *byte_ptr = new_byte.reverse_bits() };
                } else {
                    unsafe { *byte_ptr = (*byte_ptr & !byte_mask) | (byte_val & byte_mask) };
                }
                i += 1;
            }
        } else {
            let mut val = val;
            if BIT_WIDTH < 64 {
                val &= (1u64 << BIT_WIDTH) - 1;
            }
            if cfg!(target_endian = "big") {
                val = val.reverse_bits() >> (64 - BIT_WIDTH as usize);
            }
            val <<= bit_shift;
            let field_mask = if BIT_WIDTH as usize + bit_shift >= 64 {
                !0u64 << bit_shift
            } else {
                ((1u64 << BIT_WIDTH) - 1) << bit_shift
            };
            let mut i = 0;
            while i < bytes_needed {
                let byte_val = (val >> (i * 8)) as u8;
                let byte_mask = (field_mask >> (i * 8)) as u8;
                let byte_ptr = unsafe { storage_ptr.add(start_byte + i) };
                if cfg!(target_endian = "big") {
                    let byte = unsafe { (*byte_ptr).reverse_bits() };
                    let new_byte = (byte & !byte_mask) | (byte_val & byte_mask);
                    unsafe { *byte_ptr = new_byte.reverse_bits() };
                } else {
                    unsafe { *byte_ptr = (*byte_ptr & !byte_mask) | (byte_val & byte_mask) };
                }
                i += 1;
            }
        }
    }
}
pub const CUPTI_API_VERSION: u32 = 130401;
#[repr(C)]
#[derive(Debug)]
pub struct CUctx_st {
    _unused: [u8; 0],
}
pub type CUcontext = *mut CUctx_st;
#[repr(C)]
#[derive(Debug)]
pub struct CUstream_st {
    _unused: [u8; 0],
}
pub type CUstream = *mut CUstream_st;
#[repr(C)]
#[derive(Debug)]
pub struct CUgraph_st {
    _unused: [u8; 0],
}
pub type CUgraph = *mut CUgraph_st;
#[repr(C)]
#[derive(Debug)]
pub struct CUgraphNode_st {
    _unused: [u8; 0],
}
pub type CUgraphNode = *mut CUgraphNode_st;
#[repr(C)]
#[derive(Debug)]
pub struct CUgraphExec_st {
    _unused: [u8; 0],
}
pub type CUgraphExec = *mut CUgraphExec_st;
impl CUaccessProperty_enum {
    pub const CU_ACCESS_PROPERTY_NORMAL: CUaccessProperty_enum = CUaccessProperty_enum(0);
    pub const CU_ACCESS_PROPERTY_STREAMING: CUaccessProperty_enum = CUaccessProperty_enum(1);
    pub const CU_ACCESS_PROPERTY_PERSISTING: CUaccessProperty_enum = CUaccessProperty_enum(2);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUaccessProperty_enum(pub ::core::ffi::c_uint);
pub use self::CUaccessProperty_enum as CUaccessProperty;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CUaccessPolicyWindow_st {
    pub base_ptr: *mut ::core::ffi::c_void,
    pub num_bytes: usize,
    pub hitRatio: f32,
    pub hitProp: CUaccessProperty,
    pub missProp: CUaccessProperty,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUaccessPolicyWindow_st"][::core::mem::size_of::<CUaccessPolicyWindow_st>() - 32usize];
    ["Alignment of CUaccessPolicyWindow_st"][::core::mem::align_of::<CUaccessPolicyWindow_st>() - 8usize];
    ["Offset of field: CUaccessPolicyWindow_st::base_ptr"]
        [::core::mem::offset_of!(CUaccessPolicyWindow_st, base_ptr) - 0usize];
    ["Offset of field: CUaccessPolicyWindow_st::num_bytes"]
        [::core::mem::offset_of!(CUaccessPolicyWindow_st, num_bytes) - 8usize];
    ["Offset of field: CUaccessPolicyWindow_st::hitRatio"]
        [::core::mem::offset_of!(CUaccessPolicyWindow_st, hitRatio) - 16usize];
    ["Offset of field: CUaccessPolicyWindow_st::hitProp"]
        [::core::mem::offset_of!(CUaccessPolicyWindow_st, hitProp) - 20usize];
    ["Offset of field: CUaccessPolicyWindow_st::missProp"]
        [::core::mem::offset_of!(CUaccessPolicyWindow_st, missProp) - 24usize];
};
pub type CUaccessPolicyWindow_v1 = CUaccessPolicyWindow_st;
pub type CUaccessPolicyWindow = CUaccessPolicyWindow_v1;
impl CUgraphNodeType_enum {
    pub const CU_GRAPH_NODE_TYPE_KERNEL: CUgraphNodeType_enum = CUgraphNodeType_enum(0);
    pub const CU_GRAPH_NODE_TYPE_MEMCPY: CUgraphNodeType_enum = CUgraphNodeType_enum(1);
    pub const CU_GRAPH_NODE_TYPE_MEMSET: CUgraphNodeType_enum = CUgraphNodeType_enum(2);
    pub const CU_GRAPH_NODE_TYPE_HOST: CUgraphNodeType_enum = CUgraphNodeType_enum(3);
    pub const CU_GRAPH_NODE_TYPE_GRAPH: CUgraphNodeType_enum = CUgraphNodeType_enum(4);
    pub const CU_GRAPH_NODE_TYPE_EMPTY: CUgraphNodeType_enum = CUgraphNodeType_enum(5);
    pub const CU_GRAPH_NODE_TYPE_WAIT_EVENT: CUgraphNodeType_enum = CUgraphNodeType_enum(6);
    pub const CU_GRAPH_NODE_TYPE_EVENT_RECORD: CUgraphNodeType_enum = CUgraphNodeType_enum(7);
    pub const CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL: CUgraphNodeType_enum = CUgraphNodeType_enum(8);
    pub const CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT: CUgraphNodeType_enum = CUgraphNodeType_enum(9);
    pub const CU_GRAPH_NODE_TYPE_MEM_ALLOC: CUgraphNodeType_enum = CUgraphNodeType_enum(10);
    pub const CU_GRAPH_NODE_TYPE_MEM_FREE: CUgraphNodeType_enum = CUgraphNodeType_enum(11);
    pub const CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: CUgraphNodeType_enum = CUgraphNodeType_enum(12);
    pub const CU_GRAPH_NODE_TYPE_CONDITIONAL: CUgraphNodeType_enum = CUgraphNodeType_enum(13);
    pub const CU_GRAPH_NODE_TYPE_MEMCPY_BATCH: CUgraphNodeType_enum = CUgraphNodeType_enum(14);
    pub const CU_GRAPH_NODE_TYPE_RESERVED_16: CUgraphNodeType_enum = CUgraphNodeType_enum(16);
    pub const CU_GRAPH_NODE_TYPE_EXTERNAL_ENGINE: CUgraphNodeType_enum = CUgraphNodeType_enum(17);
    pub const CU_GRAPH_NODE_TYPE_FABRIC_CPY_BATCH: CUgraphNodeType_enum = CUgraphNodeType_enum(18);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUgraphNodeType_enum(pub ::core::ffi::c_uint);
pub use self::CUgraphNodeType_enum as CUgraphNodeType;
impl CUptiResult {
    pub const CUPTI_SUCCESS: CUptiResult = CUptiResult(0);
    pub const CUPTI_ERROR_INVALID_PARAMETER: CUptiResult = CUptiResult(1);
    pub const CUPTI_ERROR_INVALID_DEVICE: CUptiResult = CUptiResult(2);
    pub const CUPTI_ERROR_INVALID_CONTEXT: CUptiResult = CUptiResult(3);
    pub const CUPTI_ERROR_INVALID_EVENT_DOMAIN_ID: CUptiResult = CUptiResult(4);
    pub const CUPTI_ERROR_INVALID_EVENT_ID: CUptiResult = CUptiResult(5);
    pub const CUPTI_ERROR_INVALID_EVENT_NAME: CUptiResult = CUptiResult(6);
    pub const CUPTI_ERROR_INVALID_OPERATION: CUptiResult = CUptiResult(7);
    pub const CUPTI_ERROR_OUT_OF_MEMORY: CUptiResult = CUptiResult(8);
    pub const CUPTI_ERROR_HARDWARE: CUptiResult = CUptiResult(9);
    pub const CUPTI_ERROR_PARAMETER_SIZE_NOT_SUFFICIENT: CUptiResult = CUptiResult(10);
    pub const CUPTI_ERROR_API_NOT_IMPLEMENTED: CUptiResult = CUptiResult(11);
    pub const CUPTI_ERROR_MAX_LIMIT_REACHED: CUptiResult = CUptiResult(12);
    pub const CUPTI_ERROR_NOT_READY: CUptiResult = CUptiResult(13);
    pub const CUPTI_ERROR_NOT_COMPATIBLE: CUptiResult = CUptiResult(14);
    pub const CUPTI_ERROR_NOT_INITIALIZED: CUptiResult = CUptiResult(15);
    pub const CUPTI_ERROR_INVALID_METRIC_ID: CUptiResult = CUptiResult(16);
    pub const CUPTI_ERROR_INVALID_METRIC_NAME: CUptiResult = CUptiResult(17);
    pub const CUPTI_ERROR_QUEUE_EMPTY: CUptiResult = CUptiResult(18);
    pub const CUPTI_ERROR_INVALID_HANDLE: CUptiResult = CUptiResult(19);
    pub const CUPTI_ERROR_INVALID_STREAM: CUptiResult = CUptiResult(20);
    pub const CUPTI_ERROR_INVALID_KIND: CUptiResult = CUptiResult(21);
    pub const CUPTI_ERROR_INVALID_EVENT_VALUE: CUptiResult = CUptiResult(22);
    pub const CUPTI_ERROR_DISABLED: CUptiResult = CUptiResult(23);
    pub const CUPTI_ERROR_INVALID_MODULE: CUptiResult = CUptiResult(24);
    pub const CUPTI_ERROR_INVALID_METRIC_VALUE: CUptiResult = CUptiResult(25);
    pub const CUPTI_ERROR_HARDWARE_BUSY: CUptiResult = CUptiResult(26);
    pub const CUPTI_ERROR_NOT_SUPPORTED: CUptiResult = CUptiResult(27);
    pub const CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED: CUptiResult = CUptiResult(28);
    pub const CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_ON_DEVICE: CUptiResult = CUptiResult(29);
    pub const CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_ON_NON_P2P_DEVICES: CUptiResult = CUptiResult(30);
    pub const CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_WITH_MPS: CUptiResult = CUptiResult(31);
    pub const CUPTI_ERROR_CDP_TRACING_NOT_SUPPORTED: CUptiResult = CUptiResult(32);
    pub const CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED: CUptiResult = CUptiResult(33);
    pub const CUPTI_ERROR_CUDA_COMPILER_NOT_COMPATIBLE: CUptiResult = CUptiResult(34);
    pub const CUPTI_ERROR_INSUFFICIENT_PRIVILEGES: CUptiResult = CUptiResult(35);
    pub const CUPTI_ERROR_OLD_PROFILER_API_INITIALIZED: CUptiResult = CUptiResult(36);
    pub const CUPTI_ERROR_OPENACC_UNDEFINED_ROUTINE: CUptiResult = CUptiResult(37);
    pub const CUPTI_ERROR_LEGACY_PROFILER_NOT_SUPPORTED: CUptiResult = CUptiResult(38);
    pub const CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED: CUptiResult = CUptiResult(39);
    pub const CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES: CUptiResult = CUptiResult(40);
    pub const CUPTI_ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED: CUptiResult = CUptiResult(41);
    pub const CUPTI_ERROR_CMP_DEVICE_NOT_SUPPORTED: CUptiResult = CUptiResult(42);
    pub const CUPTI_ERROR_MIG_DEVICE_NOT_SUPPORTED: CUptiResult = CUptiResult(43);
    pub const CUPTI_ERROR_SLI_DEVICE_NOT_SUPPORTED: CUptiResult = CUptiResult(44);
    pub const CUPTI_ERROR_WSL_DEVICE_NOT_SUPPORTED: CUptiResult = CUptiResult(45);
    pub const CUPTI_ERROR_INVALID_CHIP_NAME: CUptiResult = CUptiResult(46);
    pub const CUPTI_ERROR_HES_TRACE_NOT_SUPPORTED_ON_MPS: CUptiResult = CUptiResult(47);
    pub const CUPTI_ERROR_UNKNOWN: CUptiResult = CUptiResult(999);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUptiResult(pub ::core::ffi::c_uint);
impl CUpti_ApiCallbackSite {
    pub const CUPTI_API_ENTER: CUpti_ApiCallbackSite = CUpti_ApiCallbackSite(0);
    pub const CUPTI_API_EXIT: CUpti_ApiCallbackSite = CUpti_ApiCallbackSite(1);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUpti_ApiCallbackSite(pub ::core::ffi::c_uint);
impl CUpti_CallbackDomain {
    pub const CUPTI_CB_DOMAIN_INVALID: CUpti_CallbackDomain = CUpti_CallbackDomain(0);
    pub const CUPTI_CB_DOMAIN_DRIVER_API: CUpti_CallbackDomain = CUpti_CallbackDomain(1);
    pub const CUPTI_CB_DOMAIN_RUNTIME_API: CUpti_CallbackDomain = CUpti_CallbackDomain(2);
    pub const CUPTI_CB_DOMAIN_RESOURCE: CUpti_CallbackDomain = CUpti_CallbackDomain(3);
    pub const CUPTI_CB_DOMAIN_SYNCHRONIZE: CUpti_CallbackDomain = CUpti_CallbackDomain(4);
    pub const CUPTI_CB_DOMAIN_NVTX: CUpti_CallbackDomain = CUpti_CallbackDomain(5);
    pub const CUPTI_CB_DOMAIN_STATE: CUpti_CallbackDomain = CUpti_CallbackDomain(6);
    pub const CUPTI_CB_DOMAIN_SIZE: CUpti_CallbackDomain = CUpti_CallbackDomain(7);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUpti_CallbackDomain(pub ::core::ffi::c_uint);
impl CUpti_CallbackIdResource {
    pub const CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED: CUpti_CallbackIdResource = CUpti_CallbackIdResource(13);
    pub const CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED: CUpti_CallbackIdResource = CUpti_CallbackIdResource(20);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUpti_CallbackIdResource(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CUpti_CallbackData {
    pub callbackSite: CUpti_ApiCallbackSite,
    pub functionName: *const ::core::ffi::c_char,
    pub functionParams: *const ::core::ffi::c_void,
    pub functionReturnValue: *mut ::core::ffi::c_void,
    pub symbolName: *const ::core::ffi::c_char,
    pub context: CUcontext,
    pub contextUid: u32,
    pub correlationData: *mut u64,
    pub correlationId: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_CallbackData"][::core::mem::size_of::<CUpti_CallbackData>() - 72usize];
    ["Alignment of CUpti_CallbackData"][::core::mem::align_of::<CUpti_CallbackData>() - 8usize];
    ["Offset of field: CUpti_CallbackData::callbackSite"]
        [::core::mem::offset_of!(CUpti_CallbackData, callbackSite) - 0usize];
    ["Offset of field: CUpti_CallbackData::functionName"]
        [::core::mem::offset_of!(CUpti_CallbackData, functionName) - 8usize];
    ["Offset of field: CUpti_CallbackData::functionParams"]
        [::core::mem::offset_of!(CUpti_CallbackData, functionParams) - 16usize];
    ["Offset of field: CUpti_CallbackData::functionReturnValue"]
        [::core::mem::offset_of!(CUpti_CallbackData, functionReturnValue) - 24usize];
    ["Offset of field: CUpti_CallbackData::symbolName"]
        [::core::mem::offset_of!(CUpti_CallbackData, symbolName) - 32usize];
    ["Offset of field: CUpti_CallbackData::context"][::core::mem::offset_of!(CUpti_CallbackData, context) - 40usize];
    ["Offset of field: CUpti_CallbackData::contextUid"]
        [::core::mem::offset_of!(CUpti_CallbackData, contextUid) - 48usize];
    ["Offset of field: CUpti_CallbackData::correlationData"]
        [::core::mem::offset_of!(CUpti_CallbackData, correlationData) - 56usize];
    ["Offset of field: CUpti_CallbackData::correlationId"]
        [::core::mem::offset_of!(CUpti_CallbackData, correlationId) - 64usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct CUpti_ResourceData {
    pub context: CUcontext,
    pub resourceHandle: CUpti_ResourceData__bindgen_ty_1,
    pub resourceDescriptor: *mut ::core::ffi::c_void,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union CUpti_ResourceData__bindgen_ty_1 {
    pub stream: CUstream,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_ResourceData__bindgen_ty_1"][::core::mem::size_of::<CUpti_ResourceData__bindgen_ty_1>() - 8usize];
    ["Alignment of CUpti_ResourceData__bindgen_ty_1"]
        [::core::mem::align_of::<CUpti_ResourceData__bindgen_ty_1>() - 8usize];
    ["Offset of field: CUpti_ResourceData__bindgen_ty_1::stream"]
        [::core::mem::offset_of!(CUpti_ResourceData__bindgen_ty_1, stream) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_ResourceData"][::core::mem::size_of::<CUpti_ResourceData>() - 24usize];
    ["Alignment of CUpti_ResourceData"][::core::mem::align_of::<CUpti_ResourceData>() - 8usize];
    ["Offset of field: CUpti_ResourceData::context"][::core::mem::offset_of!(CUpti_ResourceData, context) - 0usize];
    ["Offset of field: CUpti_ResourceData::resourceHandle"]
        [::core::mem::offset_of!(CUpti_ResourceData, resourceHandle) - 8usize];
    ["Offset of field: CUpti_ResourceData::resourceDescriptor"]
        [::core::mem::offset_of!(CUpti_ResourceData, resourceDescriptor) - 16usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CUpti_GraphData {
    pub graph: CUgraph,
    pub originalGraph: CUgraph,
    pub node: CUgraphNode,
    pub originalNode: CUgraphNode,
    pub nodeType: CUgraphNodeType,
    pub dependency: CUgraphNode,
    pub graphExec: CUgraphExec,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_GraphData"][::core::mem::size_of::<CUpti_GraphData>() - 56usize];
    ["Alignment of CUpti_GraphData"][::core::mem::align_of::<CUpti_GraphData>() - 8usize];
    ["Offset of field: CUpti_GraphData::graph"][::core::mem::offset_of!(CUpti_GraphData, graph) - 0usize];
    ["Offset of field: CUpti_GraphData::originalGraph"]
        [::core::mem::offset_of!(CUpti_GraphData, originalGraph) - 8usize];
    ["Offset of field: CUpti_GraphData::node"][::core::mem::offset_of!(CUpti_GraphData, node) - 16usize];
    ["Offset of field: CUpti_GraphData::originalNode"]
        [::core::mem::offset_of!(CUpti_GraphData, originalNode) - 24usize];
    ["Offset of field: CUpti_GraphData::nodeType"][::core::mem::offset_of!(CUpti_GraphData, nodeType) - 32usize];
    ["Offset of field: CUpti_GraphData::dependency"][::core::mem::offset_of!(CUpti_GraphData, dependency) - 40usize];
    ["Offset of field: CUpti_GraphData::graphExec"][::core::mem::offset_of!(CUpti_GraphData, graphExec) - 48usize];
};
pub type CUpti_CallbackId = u32;
pub type CUpti_CallbackFunc = ::core::option::Option<
    unsafe extern "C" fn(
        userdata: *mut ::core::ffi::c_void,
        domain: CUpti_CallbackDomain,
        cbid: CUpti_CallbackId,
        cbdata: *const ::core::ffi::c_void,
    ),
>;
#[repr(C)]
#[derive(Debug)]
pub struct CUpti_Subscriber_st {
    _unused: [u8; 0],
}
pub type CUpti_SubscriberHandle = *mut CUpti_Subscriber_st;
impl CUpti_ActivityKind {
    pub const CUPTI_ACTIVITY_KIND_INVALID: CUpti_ActivityKind = CUpti_ActivityKind(0);
    pub const CUPTI_ACTIVITY_KIND_MEMCPY: CUpti_ActivityKind = CUpti_ActivityKind(1);
    pub const CUPTI_ACTIVITY_KIND_MEMSET: CUpti_ActivityKind = CUpti_ActivityKind(2);
    pub const CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: CUpti_ActivityKind = CUpti_ActivityKind(10);
    pub const CUPTI_ACTIVITY_KIND_MEMCPY2: CUpti_ActivityKind = CUpti_ActivityKind(22);
    pub const CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER: CUpti_ActivityKind = CUpti_ActivityKind(25);
    pub const CUPTI_ACTIVITY_KIND_MEMORY: CUpti_ActivityKind = CUpti_ActivityKind(45);
    pub const CUPTI_ACTIVITY_KIND_MEMORY2: CUpti_ActivityKind = CUpti_ActivityKind(49);
    pub const CUPTI_ACTIVITY_KIND_MEMORY_POOL: CUpti_ActivityKind = CUpti_ActivityKind(50);
    pub const CUPTI_ACTIVITY_KIND_MEM_DECOMPRESS: CUpti_ActivityKind = CUpti_ActivityKind(54);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUpti_ActivityKind(pub ::core::ffi::c_uint);
impl CUpti_ActivityFlag {
    pub const CUPTI_ACTIVITY_FLAG_NONE: CUpti_ActivityFlag = CUpti_ActivityFlag(0);
    pub const CUPTI_ACTIVITY_FLAG_FLUSH_FORCED: CUpti_ActivityFlag = CUpti_ActivityFlag(1);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUpti_ActivityFlag(pub ::core::ffi::c_uint);
impl CUpti_ActivityMemcpyKind {
    pub const CUPTI_ACTIVITY_MEMCPY_KIND_UNKNOWN: CUpti_ActivityMemcpyKind = CUpti_ActivityMemcpyKind(0);
    pub const CUPTI_ACTIVITY_MEMCPY_KIND_HTOD: CUpti_ActivityMemcpyKind = CUpti_ActivityMemcpyKind(1);
    pub const CUPTI_ACTIVITY_MEMCPY_KIND_DTOH: CUpti_ActivityMemcpyKind = CUpti_ActivityMemcpyKind(2);
    pub const CUPTI_ACTIVITY_MEMCPY_KIND_HTOA: CUpti_ActivityMemcpyKind = CUpti_ActivityMemcpyKind(3);
    pub const CUPTI_ACTIVITY_MEMCPY_KIND_ATOH: CUpti_ActivityMemcpyKind = CUpti_ActivityMemcpyKind(4);
    pub const CUPTI_ACTIVITY_MEMCPY_KIND_ATOA: CUpti_ActivityMemcpyKind = CUpti_ActivityMemcpyKind(5);
    pub const CUPTI_ACTIVITY_MEMCPY_KIND_ATOD: CUpti_ActivityMemcpyKind = CUpti_ActivityMemcpyKind(6);
    pub const CUPTI_ACTIVITY_MEMCPY_KIND_DTOA: CUpti_ActivityMemcpyKind = CUpti_ActivityMemcpyKind(7);
    pub const CUPTI_ACTIVITY_MEMCPY_KIND_DTOD: CUpti_ActivityMemcpyKind = CUpti_ActivityMemcpyKind(8);
    pub const CUPTI_ACTIVITY_MEMCPY_KIND_HTOH: CUpti_ActivityMemcpyKind = CUpti_ActivityMemcpyKind(9);
    pub const CUPTI_ACTIVITY_MEMCPY_KIND_PTOP: CUpti_ActivityMemcpyKind = CUpti_ActivityMemcpyKind(10);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUpti_ActivityMemcpyKind(pub ::core::ffi::c_uint);
impl CUpti_ActivityMemoryKind {
    pub const CUPTI_ACTIVITY_MEMORY_KIND_UNKNOWN: CUpti_ActivityMemoryKind = CUpti_ActivityMemoryKind(0);
    pub const CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE: CUpti_ActivityMemoryKind = CUpti_ActivityMemoryKind(1);
    pub const CUPTI_ACTIVITY_MEMORY_KIND_PINNED: CUpti_ActivityMemoryKind = CUpti_ActivityMemoryKind(2);
    pub const CUPTI_ACTIVITY_MEMORY_KIND_DEVICE: CUpti_ActivityMemoryKind = CUpti_ActivityMemoryKind(3);
    pub const CUPTI_ACTIVITY_MEMORY_KIND_ARRAY: CUpti_ActivityMemoryKind = CUpti_ActivityMemoryKind(4);
    pub const CUPTI_ACTIVITY_MEMORY_KIND_MANAGED: CUpti_ActivityMemoryKind = CUpti_ActivityMemoryKind(5);
    pub const CUPTI_ACTIVITY_MEMORY_KIND_DEVICE_STATIC: CUpti_ActivityMemoryKind = CUpti_ActivityMemoryKind(6);
    pub const CUPTI_ACTIVITY_MEMORY_KIND_MANAGED_STATIC: CUpti_ActivityMemoryKind = CUpti_ActivityMemoryKind(7);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUpti_ActivityMemoryKind(pub ::core::ffi::c_uint);
impl CUpti_ActivityPartitionedGlobalCacheConfig {
    pub const CUPTI_ACTIVITY_PARTITIONED_GLOBAL_CACHE_CONFIG_UNKNOWN: CUpti_ActivityPartitionedGlobalCacheConfig =
        CUpti_ActivityPartitionedGlobalCacheConfig(0);
    pub const CUPTI_ACTIVITY_PARTITIONED_GLOBAL_CACHE_CONFIG_NOT_SUPPORTED: CUpti_ActivityPartitionedGlobalCacheConfig =
        CUpti_ActivityPartitionedGlobalCacheConfig(1);
    pub const CUPTI_ACTIVITY_PARTITIONED_GLOBAL_CACHE_CONFIG_OFF: CUpti_ActivityPartitionedGlobalCacheConfig =
        CUpti_ActivityPartitionedGlobalCacheConfig(2);
    pub const CUPTI_ACTIVITY_PARTITIONED_GLOBAL_CACHE_CONFIG_ON: CUpti_ActivityPartitionedGlobalCacheConfig =
        CUpti_ActivityPartitionedGlobalCacheConfig(3);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUpti_ActivityPartitionedGlobalCacheConfig(pub ::core::ffi::c_uint);
impl CUpti_ActivityMemoryOperationType {
    pub const CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_INVALID: CUpti_ActivityMemoryOperationType =
        CUpti_ActivityMemoryOperationType(0);
    pub const CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION: CUpti_ActivityMemoryOperationType =
        CUpti_ActivityMemoryOperationType(1);
    pub const CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE: CUpti_ActivityMemoryOperationType =
        CUpti_ActivityMemoryOperationType(2);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUpti_ActivityMemoryOperationType(pub ::core::ffi::c_uint);
impl CUpti_ActivityMemoryPoolType {
    pub const CUPTI_ACTIVITY_MEMORY_POOL_TYPE_INVALID: CUpti_ActivityMemoryPoolType = CUpti_ActivityMemoryPoolType(0);
    pub const CUPTI_ACTIVITY_MEMORY_POOL_TYPE_LOCAL: CUpti_ActivityMemoryPoolType = CUpti_ActivityMemoryPoolType(1);
    pub const CUPTI_ACTIVITY_MEMORY_POOL_TYPE_IMPORTED: CUpti_ActivityMemoryPoolType = CUpti_ActivityMemoryPoolType(2);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUpti_ActivityMemoryPoolType(pub ::core::ffi::c_uint);
impl CUpti_ActivityMemoryPoolOperationType {
    pub const CUPTI_ACTIVITY_MEMORY_POOL_OPERATION_TYPE_INVALID: CUpti_ActivityMemoryPoolOperationType =
        CUpti_ActivityMemoryPoolOperationType(0);
    pub const CUPTI_ACTIVITY_MEMORY_POOL_OPERATION_TYPE_CREATED: CUpti_ActivityMemoryPoolOperationType =
        CUpti_ActivityMemoryPoolOperationType(1);
    pub const CUPTI_ACTIVITY_MEMORY_POOL_OPERATION_TYPE_DESTROYED: CUpti_ActivityMemoryPoolOperationType =
        CUpti_ActivityMemoryPoolOperationType(2);
    pub const CUPTI_ACTIVITY_MEMORY_POOL_OPERATION_TYPE_TRIMMED: CUpti_ActivityMemoryPoolOperationType =
        CUpti_ActivityMemoryPoolOperationType(3);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUpti_ActivityMemoryPoolOperationType(pub ::core::ffi::c_uint);
impl CUpti_ChannelType {
    pub const CUPTI_CHANNEL_TYPE_INVALID: CUpti_ChannelType = CUpti_ChannelType(0);
    pub const CUPTI_CHANNEL_TYPE_COMPUTE: CUpti_ChannelType = CUpti_ChannelType(1);
    pub const CUPTI_CHANNEL_TYPE_ASYNC_MEMCPY: CUpti_ChannelType = CUpti_ChannelType(2);
    pub const CUPTI_CHANNEL_TYPE_DECOMP: CUpti_ChannelType = CUpti_ChannelType(3);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUpti_ChannelType(pub ::core::ffi::c_uint);
#[repr(C)]
#[repr(align(8))]
#[derive(Debug, Copy, Clone)]
pub struct CUpti_Activity {
    pub kind: CUpti_ActivityKind,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_Activity"][::core::mem::size_of::<CUpti_Activity>() - 8usize];
    ["Alignment of CUpti_Activity"][::core::mem::align_of::<CUpti_Activity>() - 8usize];
    ["Offset of field: CUpti_Activity::kind"][::core::mem::offset_of!(CUpti_Activity, kind) - 0usize];
};
#[repr(C, packed(8))]
#[derive(Debug, Copy, Clone)]
pub struct CUpti_ActivityMemcpyPtoP4 {
    pub kind: CUpti_ActivityKind,
    pub copyKind: u8,
    pub srcKind: u8,
    pub dstKind: u8,
    pub flags: u8,
    pub bytes: u64,
    pub start: u64,
    pub end: u64,
    pub deviceId: u32,
    pub contextId: u32,
    pub streamId: u32,
    pub srcDeviceId: u32,
    pub srcContextId: u32,
    pub dstDeviceId: u32,
    pub dstContextId: u32,
    pub correlationId: u32,
    pub reserved0: *mut ::core::ffi::c_void,
    pub graphNodeId: u64,
    pub graphId: u32,
    pub channelID: u32,
    pub channelType: CUpti_ChannelType,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_ActivityMemcpyPtoP4"][::core::mem::size_of::<CUpti_ActivityMemcpyPtoP4>() - 96usize];
    ["Alignment of CUpti_ActivityMemcpyPtoP4"][::core::mem::align_of::<CUpti_ActivityMemcpyPtoP4>() - 8usize];
    ["Offset of field: CUpti_ActivityMemcpyPtoP4::kind"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpyPtoP4, kind) - 0usize];
    ["Offset of field: CUpti_ActivityMemcpyPtoP4::copyKind"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpyPtoP4, copyKind) - 4usize];
    ["Offset of field: CUpti_ActivityMemcpyPtoP4::srcKind"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpyPtoP4, srcKind) - 5usize];
    ["Offset of field: CUpti_ActivityMemcpyPtoP4::dstKind"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpyPtoP4, dstKind) - 6usize];
    ["Offset of field: CUpti_ActivityMemcpyPtoP4::flags"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpyPtoP4, flags) - 7usize];
    ["Offset of field: CUpti_ActivityMemcpyPtoP4::bytes"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpyPtoP4, bytes) - 8usize];
    ["Offset of field: CUpti_ActivityMemcpyPtoP4::start"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpyPtoP4, start) - 16usize];
    ["Offset of field: CUpti_ActivityMemcpyPtoP4::end"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpyPtoP4, end) - 24usize];
    ["Offset of field: CUpti_ActivityMemcpyPtoP4::deviceId"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpyPtoP4, deviceId) - 32usize];
    ["Offset of field: CUpti_ActivityMemcpyPtoP4::contextId"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpyPtoP4, contextId) - 36usize];
    ["Offset of field: CUpti_ActivityMemcpyPtoP4::streamId"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpyPtoP4, streamId) - 40usize];
    ["Offset of field: CUpti_ActivityMemcpyPtoP4::srcDeviceId"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpyPtoP4, srcDeviceId) - 44usize];
    ["Offset of field: CUpti_ActivityMemcpyPtoP4::srcContextId"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpyPtoP4, srcContextId) - 48usize];
    ["Offset of field: CUpti_ActivityMemcpyPtoP4::dstDeviceId"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpyPtoP4, dstDeviceId) - 52usize];
    ["Offset of field: CUpti_ActivityMemcpyPtoP4::dstContextId"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpyPtoP4, dstContextId) - 56usize];
    ["Offset of field: CUpti_ActivityMemcpyPtoP4::correlationId"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpyPtoP4, correlationId) - 60usize];
    ["Offset of field: CUpti_ActivityMemcpyPtoP4::reserved0"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpyPtoP4, reserved0) - 64usize];
    ["Offset of field: CUpti_ActivityMemcpyPtoP4::graphNodeId"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpyPtoP4, graphNodeId) - 72usize];
    ["Offset of field: CUpti_ActivityMemcpyPtoP4::graphId"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpyPtoP4, graphId) - 80usize];
    ["Offset of field: CUpti_ActivityMemcpyPtoP4::channelID"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpyPtoP4, channelID) - 84usize];
    ["Offset of field: CUpti_ActivityMemcpyPtoP4::channelType"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpyPtoP4, channelType) - 88usize];
};
#[repr(C, packed(8))]
#[derive(Copy, Clone)]
pub struct CUpti_ActivityMemory4 {
    pub kind: CUpti_ActivityKind,
    pub memoryOperationType: CUpti_ActivityMemoryOperationType,
    pub memoryKind: CUpti_ActivityMemoryKind,
    pub correlationId: u32,
    pub address: u64,
    pub bytes: u64,
    pub timestamp: u64,
    pub PC: u64,
    pub processId: u32,
    pub deviceId: u32,
    pub contextId: u32,
    pub streamId: u32,
    pub name: *const ::core::ffi::c_char,
    pub isAsync: u32,
    pub pad1: u32,
    pub memoryPoolConfig: CUpti_ActivityMemory4__bindgen_ty_1,
    pub source: *const ::core::ffi::c_char,
}
#[repr(C, packed(8))]
#[derive(Copy, Clone)]
pub struct CUpti_ActivityMemory4__bindgen_ty_1 {
    pub memoryPoolType: CUpti_ActivityMemoryPoolType,
    pub pad2: u32,
    pub address: u64,
    pub releaseThreshold: u64,
    pub pool: CUpti_ActivityMemory4__bindgen_ty_1__bindgen_ty_1,
    pub utilizedSize: u64,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union CUpti_ActivityMemory4__bindgen_ty_1__bindgen_ty_1 {
    pub size: u64,
    pub processId: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_ActivityMemory4__bindgen_ty_1__bindgen_ty_1"]
        [::core::mem::size_of::<CUpti_ActivityMemory4__bindgen_ty_1__bindgen_ty_1>() - 8usize];
    ["Alignment of CUpti_ActivityMemory4__bindgen_ty_1__bindgen_ty_1"]
        [::core::mem::align_of::<CUpti_ActivityMemory4__bindgen_ty_1__bindgen_ty_1>() - 8usize];
    ["Offset of field: CUpti_ActivityMemory4__bindgen_ty_1__bindgen_ty_1::size"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4__bindgen_ty_1__bindgen_ty_1, size) - 0usize];
    ["Offset of field: CUpti_ActivityMemory4__bindgen_ty_1__bindgen_ty_1::processId"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4__bindgen_ty_1__bindgen_ty_1, processId) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_ActivityMemory4__bindgen_ty_1"]
        [::core::mem::size_of::<CUpti_ActivityMemory4__bindgen_ty_1>() - 40usize];
    ["Alignment of CUpti_ActivityMemory4__bindgen_ty_1"]
        [::core::mem::align_of::<CUpti_ActivityMemory4__bindgen_ty_1>() - 8usize];
    ["Offset of field: CUpti_ActivityMemory4__bindgen_ty_1::memoryPoolType"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4__bindgen_ty_1, memoryPoolType) - 0usize];
    ["Offset of field: CUpti_ActivityMemory4__bindgen_ty_1::pad2"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4__bindgen_ty_1, pad2) - 4usize];
    ["Offset of field: CUpti_ActivityMemory4__bindgen_ty_1::address"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4__bindgen_ty_1, address) - 8usize];
    ["Offset of field: CUpti_ActivityMemory4__bindgen_ty_1::releaseThreshold"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4__bindgen_ty_1, releaseThreshold) - 16usize];
    ["Offset of field: CUpti_ActivityMemory4__bindgen_ty_1::pool"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4__bindgen_ty_1, pool) - 24usize];
    ["Offset of field: CUpti_ActivityMemory4__bindgen_ty_1::utilizedSize"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4__bindgen_ty_1, utilizedSize) - 32usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_ActivityMemory4"][::core::mem::size_of::<CUpti_ActivityMemory4>() - 128usize];
    ["Alignment of CUpti_ActivityMemory4"][::core::mem::align_of::<CUpti_ActivityMemory4>() - 8usize];
    ["Offset of field: CUpti_ActivityMemory4::kind"][::core::mem::offset_of!(CUpti_ActivityMemory4, kind) - 0usize];
    ["Offset of field: CUpti_ActivityMemory4::memoryOperationType"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4, memoryOperationType) - 4usize];
    ["Offset of field: CUpti_ActivityMemory4::memoryKind"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4, memoryKind) - 8usize];
    ["Offset of field: CUpti_ActivityMemory4::correlationId"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4, correlationId) - 12usize];
    ["Offset of field: CUpti_ActivityMemory4::address"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4, address) - 16usize];
    ["Offset of field: CUpti_ActivityMemory4::bytes"][::core::mem::offset_of!(CUpti_ActivityMemory4, bytes) - 24usize];
    ["Offset of field: CUpti_ActivityMemory4::timestamp"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4, timestamp) - 32usize];
    ["Offset of field: CUpti_ActivityMemory4::PC"][::core::mem::offset_of!(CUpti_ActivityMemory4, PC) - 40usize];
    ["Offset of field: CUpti_ActivityMemory4::processId"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4, processId) - 48usize];
    ["Offset of field: CUpti_ActivityMemory4::deviceId"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4, deviceId) - 52usize];
    ["Offset of field: CUpti_ActivityMemory4::contextId"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4, contextId) - 56usize];
    ["Offset of field: CUpti_ActivityMemory4::streamId"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4, streamId) - 60usize];
    ["Offset of field: CUpti_ActivityMemory4::name"][::core::mem::offset_of!(CUpti_ActivityMemory4, name) - 64usize];
    ["Offset of field: CUpti_ActivityMemory4::isAsync"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4, isAsync) - 72usize];
    ["Offset of field: CUpti_ActivityMemory4::pad1"][::core::mem::offset_of!(CUpti_ActivityMemory4, pad1) - 76usize];
    ["Offset of field: CUpti_ActivityMemory4::memoryPoolConfig"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4, memoryPoolConfig) - 80usize];
    ["Offset of field: CUpti_ActivityMemory4::source"]
        [::core::mem::offset_of!(CUpti_ActivityMemory4, source) - 120usize];
};
#[repr(C, packed(8))]
#[derive(Debug, Copy, Clone)]
pub struct CUpti_ActivityMemoryPool3 {
    pub kind: CUpti_ActivityKind,
    pub memoryPoolOperationType: CUpti_ActivityMemoryPoolOperationType,
    pub memoryPoolType: CUpti_ActivityMemoryPoolType,
    pub correlationId: u32,
    pub processId: u32,
    pub deviceId: u32,
    pub minBytesToKeep: usize,
    pub address: u64,
    pub size: u64,
    pub releaseThreshold: u64,
    pub timestamp: u64,
    pub utilizedSize: u64,
    pub isManagedPool: u8,
    pub pad2: [u8; 7usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_ActivityMemoryPool3"][::core::mem::size_of::<CUpti_ActivityMemoryPool3>() - 80usize];
    ["Alignment of CUpti_ActivityMemoryPool3"][::core::mem::align_of::<CUpti_ActivityMemoryPool3>() - 8usize];
    ["Offset of field: CUpti_ActivityMemoryPool3::kind"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool3, kind) - 0usize];
    ["Offset of field: CUpti_ActivityMemoryPool3::memoryPoolOperationType"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool3, memoryPoolOperationType) - 4usize];
    ["Offset of field: CUpti_ActivityMemoryPool3::memoryPoolType"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool3, memoryPoolType) - 8usize];
    ["Offset of field: CUpti_ActivityMemoryPool3::correlationId"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool3, correlationId) - 12usize];
    ["Offset of field: CUpti_ActivityMemoryPool3::processId"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool3, processId) - 16usize];
    ["Offset of field: CUpti_ActivityMemoryPool3::deviceId"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool3, deviceId) - 20usize];
    ["Offset of field: CUpti_ActivityMemoryPool3::minBytesToKeep"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool3, minBytesToKeep) - 24usize];
    ["Offset of field: CUpti_ActivityMemoryPool3::address"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool3, address) - 32usize];
    ["Offset of field: CUpti_ActivityMemoryPool3::size"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool3, size) - 40usize];
    ["Offset of field: CUpti_ActivityMemoryPool3::releaseThreshold"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool3, releaseThreshold) - 48usize];
    ["Offset of field: CUpti_ActivityMemoryPool3::timestamp"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool3, timestamp) - 56usize];
    ["Offset of field: CUpti_ActivityMemoryPool3::utilizedSize"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool3, utilizedSize) - 64usize];
    ["Offset of field: CUpti_ActivityMemoryPool3::isManagedPool"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool3, isManagedPool) - 72usize];
    ["Offset of field: CUpti_ActivityMemoryPool3::pad2"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool3, pad2) - 73usize];
};
impl CUpti_FuncShmemLimitConfig {
    pub const CUPTI_FUNC_SHMEM_LIMIT_DEFAULT: CUpti_FuncShmemLimitConfig = CUpti_FuncShmemLimitConfig(0);
    pub const CUPTI_FUNC_SHMEM_LIMIT_OPTIN: CUpti_FuncShmemLimitConfig = CUpti_FuncShmemLimitConfig(1);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUpti_FuncShmemLimitConfig(pub ::core::ffi::c_uint);
pub type CUpti_BuffersCallbackRequestFunc =
    ::core::option::Option<unsafe extern "C" fn(buffer: *mut *mut u8, size: *mut usize, maxNumRecords: *mut usize)>;
pub type CUpti_BuffersCallbackCompleteFunc = ::core::option::Option<
    unsafe extern "C" fn(context: CUcontext, streamId: u32, buffer: *mut u8, size: usize, validSize: usize),
>;
pub type CUpti_TimestampCallbackFunc = ::core::option::Option<unsafe extern "C" fn() -> u64>;
#[repr(C, packed(8))]
#[derive(Copy, Clone)]
pub struct CUpti_ActivityKernel9 {
    pub kind: CUpti_ActivityKind,
    pub cacheConfig: CUpti_ActivityKernel9__bindgen_ty_1,
    pub sharedMemoryConfig: u8,
    pub registersPerThread: u16,
    pub partitionedGlobalCacheRequested: CUpti_ActivityPartitionedGlobalCacheConfig,
    pub partitionedGlobalCacheExecuted: CUpti_ActivityPartitionedGlobalCacheConfig,
    pub start: u64,
    pub end: u64,
    pub completed: u64,
    pub deviceId: u32,
    pub contextId: u32,
    pub streamId: u32,
    pub gridX: i32,
    pub gridY: i32,
    pub gridZ: i32,
    pub blockX: i32,
    pub blockY: i32,
    pub blockZ: i32,
    pub staticSharedMemory: i32,
    pub dynamicSharedMemory: i32,
    pub localMemoryPerThread: u32,
    pub localMemoryTotal: u32,
    pub correlationId: u32,
    pub gridId: i64,
    pub name: *const ::core::ffi::c_char,
    pub reserved0: *mut ::core::ffi::c_void,
    pub queued: u64,
    pub submitted: u64,
    pub launchType: u8,
    pub isSharedMemoryCarveoutRequested: u8,
    pub sharedMemoryCarveoutRequested: u8,
    pub padding: u8,
    pub sharedMemoryExecuted: u32,
    pub graphNodeId: u64,
    pub shmemLimitConfig: CUpti_FuncShmemLimitConfig,
    pub graphId: u32,
    pub pAccessPolicyWindow: *mut CUaccessPolicyWindow,
    pub channelID: u32,
    pub channelType: CUpti_ChannelType,
    pub clusterX: u32,
    pub clusterY: u32,
    pub clusterZ: u32,
    pub clusterSchedulingPolicy: u32,
    pub localMemoryTotal_v2: u64,
    pub maxPotentialClusterSize: u32,
    pub maxActiveClusters: u32,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union CUpti_ActivityKernel9__bindgen_ty_1 {
    pub both: u8,
    pub config: CUpti_ActivityKernel9__bindgen_ty_1__bindgen_ty_1,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CUpti_ActivityKernel9__bindgen_ty_1__bindgen_ty_1 {
    pub _bitfield_1: __BindgenBitfieldUnit<[u8; 1usize]>,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_ActivityKernel9__bindgen_ty_1__bindgen_ty_1"]
        [::core::mem::size_of::<CUpti_ActivityKernel9__bindgen_ty_1__bindgen_ty_1>() - 1usize];
    ["Alignment of CUpti_ActivityKernel9__bindgen_ty_1__bindgen_ty_1"]
        [::core::mem::align_of::<CUpti_ActivityKernel9__bindgen_ty_1__bindgen_ty_1>() - 1usize];
};
impl CUpti_ActivityKernel9__bindgen_ty_1__bindgen_ty_1 {
    #[inline]
    #[allow(unnecessary_transmutes)]
    pub fn requested(&self) -> u8 {
        unsafe { ::core::mem::transmute(self._bitfield_1.get_const::<0usize, 4u8>() as u8) }
    }
    #[inline]
    #[allow(unnecessary_transmutes)]
    pub fn set_requested(&mut self, val: u8) {
        unsafe {
            let val: u8 = ::core::mem::transmute(val);
            self._bitfield_1.set_const::<0usize, 4u8>(val as u64)
        }
    }
    #[inline]
    #[allow(unnecessary_transmutes)]
    pub unsafe fn requested_raw(this: *const Self) -> u8 {
        unsafe {
            ::core::mem::transmute(<__BindgenBitfieldUnit<[u8; 1usize]>>::raw_get_const::<0usize, 4u8>(
                ::core::ptr::addr_of!((*this)._bitfield_1),
            ) as u8)
        }
    }
    #[inline]
    #[allow(unnecessary_transmutes)]
    pub unsafe fn set_requested_raw(this: *mut Self, val: u8) {
        unsafe {
            let val: u8 = ::core::mem::transmute(val);
            <__BindgenBitfieldUnit<[u8; 1usize]>>::raw_set_const::<0usize, 4u8>(
                ::core::ptr::addr_of_mut!((*this)._bitfield_1),
                val as u64,
            )
        }
    }
    #[inline]
    #[allow(unnecessary_transmutes)]
    pub fn executed(&self) -> u8 {
        unsafe { ::core::mem::transmute(self._bitfield_1.get_const::<4usize, 4u8>() as u8) }
    }
    #[inline]
    #[allow(unnecessary_transmutes)]
    pub fn set_executed(&mut self, val: u8) {
        unsafe {
            let val: u8 = ::core::mem::transmute(val);
            self._bitfield_1.set_const::<4usize, 4u8>(val as u64)
        }
    }
    #[inline]
    #[allow(unnecessary_transmutes)]
    pub unsafe fn executed_raw(this: *const Self) -> u8 {
        unsafe {
            ::core::mem::transmute(<__BindgenBitfieldUnit<[u8; 1usize]>>::raw_get_const::<4usize, 4u8>(
                ::core::ptr::addr_of!((*this)._bitfield_1),
            ) as u8)
        }
    }
    #[inline]
    #[allow(unnecessary_transmutes)]
    pub unsafe fn set_executed_raw(this: *mut Self, val: u8) {
        unsafe {
            let val: u8 = ::core::mem::transmute(val);
            <__BindgenBitfieldUnit<[u8; 1usize]>>::raw_set_const::<4usize, 4u8>(
                ::core::ptr::addr_of_mut!((*this)._bitfield_1),
                val as u64,
            )
        }
    }
    #[inline]
    #[allow(unnecessary_transmutes)]
    pub fn new_bitfield_1(requested: u8, executed: u8) -> __BindgenBitfieldUnit<[u8; 1usize]> {
        let mut __bindgen_bitfield_unit: __BindgenBitfieldUnit<[u8; 1usize]> = Default::default();
        __bindgen_bitfield_unit.set_const::<0usize, 4u8>({
            let requested: u8 = unsafe { ::core::mem::transmute(requested) };
            requested as u64
        });
        __bindgen_bitfield_unit.set_const::<4usize, 4u8>({
            let executed: u8 = unsafe { ::core::mem::transmute(executed) };
            executed as u64
        });
        __bindgen_bitfield_unit
    }
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_ActivityKernel9__bindgen_ty_1"]
        [::core::mem::size_of::<CUpti_ActivityKernel9__bindgen_ty_1>() - 1usize];
    ["Alignment of CUpti_ActivityKernel9__bindgen_ty_1"]
        [::core::mem::align_of::<CUpti_ActivityKernel9__bindgen_ty_1>() - 1usize];
    ["Offset of field: CUpti_ActivityKernel9__bindgen_ty_1::both"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9__bindgen_ty_1, both) - 0usize];
    ["Offset of field: CUpti_ActivityKernel9__bindgen_ty_1::config"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9__bindgen_ty_1, config) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_ActivityKernel9"][::core::mem::size_of::<CUpti_ActivityKernel9>() - 208usize];
    ["Alignment of CUpti_ActivityKernel9"][::core::mem::align_of::<CUpti_ActivityKernel9>() - 8usize];
    ["Offset of field: CUpti_ActivityKernel9::kind"][::core::mem::offset_of!(CUpti_ActivityKernel9, kind) - 0usize];
    ["Offset of field: CUpti_ActivityKernel9::cacheConfig"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, cacheConfig) - 4usize];
    ["Offset of field: CUpti_ActivityKernel9::sharedMemoryConfig"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, sharedMemoryConfig) - 5usize];
    ["Offset of field: CUpti_ActivityKernel9::registersPerThread"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, registersPerThread) - 6usize];
    ["Offset of field: CUpti_ActivityKernel9::partitionedGlobalCacheRequested"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, partitionedGlobalCacheRequested) - 8usize];
    ["Offset of field: CUpti_ActivityKernel9::partitionedGlobalCacheExecuted"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, partitionedGlobalCacheExecuted) - 12usize];
    ["Offset of field: CUpti_ActivityKernel9::start"][::core::mem::offset_of!(CUpti_ActivityKernel9, start) - 16usize];
    ["Offset of field: CUpti_ActivityKernel9::end"][::core::mem::offset_of!(CUpti_ActivityKernel9, end) - 24usize];
    ["Offset of field: CUpti_ActivityKernel9::completed"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, completed) - 32usize];
    ["Offset of field: CUpti_ActivityKernel9::deviceId"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, deviceId) - 40usize];
    ["Offset of field: CUpti_ActivityKernel9::contextId"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, contextId) - 44usize];
    ["Offset of field: CUpti_ActivityKernel9::streamId"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, streamId) - 48usize];
    ["Offset of field: CUpti_ActivityKernel9::gridX"][::core::mem::offset_of!(CUpti_ActivityKernel9, gridX) - 52usize];
    ["Offset of field: CUpti_ActivityKernel9::gridY"][::core::mem::offset_of!(CUpti_ActivityKernel9, gridY) - 56usize];
    ["Offset of field: CUpti_ActivityKernel9::gridZ"][::core::mem::offset_of!(CUpti_ActivityKernel9, gridZ) - 60usize];
    ["Offset of field: CUpti_ActivityKernel9::blockX"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, blockX) - 64usize];
    ["Offset of field: CUpti_ActivityKernel9::blockY"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, blockY) - 68usize];
    ["Offset of field: CUpti_ActivityKernel9::blockZ"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, blockZ) - 72usize];
    ["Offset of field: CUpti_ActivityKernel9::staticSharedMemory"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, staticSharedMemory) - 76usize];
    ["Offset of field: CUpti_ActivityKernel9::dynamicSharedMemory"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, dynamicSharedMemory) - 80usize];
    ["Offset of field: CUpti_ActivityKernel9::localMemoryPerThread"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, localMemoryPerThread) - 84usize];
    ["Offset of field: CUpti_ActivityKernel9::localMemoryTotal"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, localMemoryTotal) - 88usize];
    ["Offset of field: CUpti_ActivityKernel9::correlationId"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, correlationId) - 92usize];
    ["Offset of field: CUpti_ActivityKernel9::gridId"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, gridId) - 96usize];
    ["Offset of field: CUpti_ActivityKernel9::name"][::core::mem::offset_of!(CUpti_ActivityKernel9, name) - 104usize];
    ["Offset of field: CUpti_ActivityKernel9::reserved0"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, reserved0) - 112usize];
    ["Offset of field: CUpti_ActivityKernel9::queued"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, queued) - 120usize];
    ["Offset of field: CUpti_ActivityKernel9::submitted"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, submitted) - 128usize];
    ["Offset of field: CUpti_ActivityKernel9::launchType"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, launchType) - 136usize];
    ["Offset of field: CUpti_ActivityKernel9::isSharedMemoryCarveoutRequested"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, isSharedMemoryCarveoutRequested) - 137usize];
    ["Offset of field: CUpti_ActivityKernel9::sharedMemoryCarveoutRequested"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, sharedMemoryCarveoutRequested) - 138usize];
    ["Offset of field: CUpti_ActivityKernel9::padding"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, padding) - 139usize];
    ["Offset of field: CUpti_ActivityKernel9::sharedMemoryExecuted"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, sharedMemoryExecuted) - 140usize];
    ["Offset of field: CUpti_ActivityKernel9::graphNodeId"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, graphNodeId) - 144usize];
    ["Offset of field: CUpti_ActivityKernel9::shmemLimitConfig"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, shmemLimitConfig) - 152usize];
    ["Offset of field: CUpti_ActivityKernel9::graphId"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, graphId) - 156usize];
    ["Offset of field: CUpti_ActivityKernel9::pAccessPolicyWindow"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, pAccessPolicyWindow) - 160usize];
    ["Offset of field: CUpti_ActivityKernel9::channelID"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, channelID) - 168usize];
    ["Offset of field: CUpti_ActivityKernel9::channelType"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, channelType) - 172usize];
    ["Offset of field: CUpti_ActivityKernel9::clusterX"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, clusterX) - 176usize];
    ["Offset of field: CUpti_ActivityKernel9::clusterY"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, clusterY) - 180usize];
    ["Offset of field: CUpti_ActivityKernel9::clusterZ"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, clusterZ) - 184usize];
    ["Offset of field: CUpti_ActivityKernel9::clusterSchedulingPolicy"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, clusterSchedulingPolicy) - 188usize];
    ["Offset of field: CUpti_ActivityKernel9::localMemoryTotal_v2"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, localMemoryTotal_v2) - 192usize];
    ["Offset of field: CUpti_ActivityKernel9::maxPotentialClusterSize"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, maxPotentialClusterSize) - 200usize];
    ["Offset of field: CUpti_ActivityKernel9::maxActiveClusters"]
        [::core::mem::offset_of!(CUpti_ActivityKernel9, maxActiveClusters) - 204usize];
};
#[repr(C, packed(8))]
#[derive(Debug, Copy, Clone)]
pub struct CUpti_ActivityMemset4 {
    pub kind: CUpti_ActivityKind,
    pub value: u32,
    pub bytes: u64,
    pub start: u64,
    pub end: u64,
    pub deviceId: u32,
    pub contextId: u32,
    pub streamId: u32,
    pub correlationId: u32,
    pub flags: u16,
    pub memoryKind: u16,
    pub pad: u32,
    pub reserved0: *mut ::core::ffi::c_void,
    pub graphNodeId: u64,
    pub graphId: u32,
    pub channelID: u32,
    pub channelType: CUpti_ChannelType,
    pub isDeviceLaunched: u8,
    pub pad2: [u8; 3usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_ActivityMemset4"][::core::mem::size_of::<CUpti_ActivityMemset4>() - 88usize];
    ["Alignment of CUpti_ActivityMemset4"][::core::mem::align_of::<CUpti_ActivityMemset4>() - 8usize];
    ["Offset of field: CUpti_ActivityMemset4::kind"][::core::mem::offset_of!(CUpti_ActivityMemset4, kind) - 0usize];
    ["Offset of field: CUpti_ActivityMemset4::value"][::core::mem::offset_of!(CUpti_ActivityMemset4, value) - 4usize];
    ["Offset of field: CUpti_ActivityMemset4::bytes"][::core::mem::offset_of!(CUpti_ActivityMemset4, bytes) - 8usize];
    ["Offset of field: CUpti_ActivityMemset4::start"][::core::mem::offset_of!(CUpti_ActivityMemset4, start) - 16usize];
    ["Offset of field: CUpti_ActivityMemset4::end"][::core::mem::offset_of!(CUpti_ActivityMemset4, end) - 24usize];
    ["Offset of field: CUpti_ActivityMemset4::deviceId"]
        [::core::mem::offset_of!(CUpti_ActivityMemset4, deviceId) - 32usize];
    ["Offset of field: CUpti_ActivityMemset4::contextId"]
        [::core::mem::offset_of!(CUpti_ActivityMemset4, contextId) - 36usize];
    ["Offset of field: CUpti_ActivityMemset4::streamId"]
        [::core::mem::offset_of!(CUpti_ActivityMemset4, streamId) - 40usize];
    ["Offset of field: CUpti_ActivityMemset4::correlationId"]
        [::core::mem::offset_of!(CUpti_ActivityMemset4, correlationId) - 44usize];
    ["Offset of field: CUpti_ActivityMemset4::flags"][::core::mem::offset_of!(CUpti_ActivityMemset4, flags) - 48usize];
    ["Offset of field: CUpti_ActivityMemset4::memoryKind"]
        [::core::mem::offset_of!(CUpti_ActivityMemset4, memoryKind) - 50usize];
    ["Offset of field: CUpti_ActivityMemset4::pad"][::core::mem::offset_of!(CUpti_ActivityMemset4, pad) - 52usize];
    ["Offset of field: CUpti_ActivityMemset4::reserved0"]
        [::core::mem::offset_of!(CUpti_ActivityMemset4, reserved0) - 56usize];
    ["Offset of field: CUpti_ActivityMemset4::graphNodeId"]
        [::core::mem::offset_of!(CUpti_ActivityMemset4, graphNodeId) - 64usize];
    ["Offset of field: CUpti_ActivityMemset4::graphId"]
        [::core::mem::offset_of!(CUpti_ActivityMemset4, graphId) - 72usize];
    ["Offset of field: CUpti_ActivityMemset4::channelID"]
        [::core::mem::offset_of!(CUpti_ActivityMemset4, channelID) - 76usize];
    ["Offset of field: CUpti_ActivityMemset4::channelType"]
        [::core::mem::offset_of!(CUpti_ActivityMemset4, channelType) - 80usize];
    ["Offset of field: CUpti_ActivityMemset4::isDeviceLaunched"]
        [::core::mem::offset_of!(CUpti_ActivityMemset4, isDeviceLaunched) - 84usize];
    ["Offset of field: CUpti_ActivityMemset4::pad2"][::core::mem::offset_of!(CUpti_ActivityMemset4, pad2) - 85usize];
};
#[repr(C, packed(8))]
#[derive(Copy, Clone)]
pub struct CUpti_ActivityMemory2 {
    pub kind: CUpti_ActivityKind,
    pub memoryOperationType: CUpti_ActivityMemoryOperationType,
    pub memoryKind: CUpti_ActivityMemoryKind,
    pub correlationId: u32,
    pub address: u64,
    pub bytes: u64,
    pub timestamp: u64,
    pub PC: u64,
    pub processId: u32,
    pub deviceId: u32,
    pub contextId: u32,
    pub streamId: u32,
    pub name: *const ::core::ffi::c_char,
    pub isAsync: u32,
    pub pad1: u32,
    pub memoryPoolConfig: CUpti_ActivityMemory2__bindgen_ty_1,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct CUpti_ActivityMemory2__bindgen_ty_1 {
    pub memoryPoolType: CUpti_ActivityMemoryPoolType,
    pub pad2: u32,
    pub address: u64,
    pub releaseThreshold: u64,
    pub pool: CUpti_ActivityMemory2__bindgen_ty_1__bindgen_ty_1,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union CUpti_ActivityMemory2__bindgen_ty_1__bindgen_ty_1 {
    pub size: u64,
    pub processId: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_ActivityMemory2__bindgen_ty_1__bindgen_ty_1"]
        [::core::mem::size_of::<CUpti_ActivityMemory2__bindgen_ty_1__bindgen_ty_1>() - 8usize];
    ["Alignment of CUpti_ActivityMemory2__bindgen_ty_1__bindgen_ty_1"]
        [::core::mem::align_of::<CUpti_ActivityMemory2__bindgen_ty_1__bindgen_ty_1>() - 8usize];
    ["Offset of field: CUpti_ActivityMemory2__bindgen_ty_1__bindgen_ty_1::size"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2__bindgen_ty_1__bindgen_ty_1, size) - 0usize];
    ["Offset of field: CUpti_ActivityMemory2__bindgen_ty_1__bindgen_ty_1::processId"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2__bindgen_ty_1__bindgen_ty_1, processId) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_ActivityMemory2__bindgen_ty_1"]
        [::core::mem::size_of::<CUpti_ActivityMemory2__bindgen_ty_1>() - 32usize];
    ["Alignment of CUpti_ActivityMemory2__bindgen_ty_1"]
        [::core::mem::align_of::<CUpti_ActivityMemory2__bindgen_ty_1>() - 8usize];
    ["Offset of field: CUpti_ActivityMemory2__bindgen_ty_1::memoryPoolType"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2__bindgen_ty_1, memoryPoolType) - 0usize];
    ["Offset of field: CUpti_ActivityMemory2__bindgen_ty_1::pad2"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2__bindgen_ty_1, pad2) - 4usize];
    ["Offset of field: CUpti_ActivityMemory2__bindgen_ty_1::address"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2__bindgen_ty_1, address) - 8usize];
    ["Offset of field: CUpti_ActivityMemory2__bindgen_ty_1::releaseThreshold"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2__bindgen_ty_1, releaseThreshold) - 16usize];
    ["Offset of field: CUpti_ActivityMemory2__bindgen_ty_1::pool"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2__bindgen_ty_1, pool) - 24usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_ActivityMemory2"][::core::mem::size_of::<CUpti_ActivityMemory2>() - 112usize];
    ["Alignment of CUpti_ActivityMemory2"][::core::mem::align_of::<CUpti_ActivityMemory2>() - 8usize];
    ["Offset of field: CUpti_ActivityMemory2::kind"][::core::mem::offset_of!(CUpti_ActivityMemory2, kind) - 0usize];
    ["Offset of field: CUpti_ActivityMemory2::memoryOperationType"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2, memoryOperationType) - 4usize];
    ["Offset of field: CUpti_ActivityMemory2::memoryKind"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2, memoryKind) - 8usize];
    ["Offset of field: CUpti_ActivityMemory2::correlationId"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2, correlationId) - 12usize];
    ["Offset of field: CUpti_ActivityMemory2::address"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2, address) - 16usize];
    ["Offset of field: CUpti_ActivityMemory2::bytes"][::core::mem::offset_of!(CUpti_ActivityMemory2, bytes) - 24usize];
    ["Offset of field: CUpti_ActivityMemory2::timestamp"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2, timestamp) - 32usize];
    ["Offset of field: CUpti_ActivityMemory2::PC"][::core::mem::offset_of!(CUpti_ActivityMemory2, PC) - 40usize];
    ["Offset of field: CUpti_ActivityMemory2::processId"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2, processId) - 48usize];
    ["Offset of field: CUpti_ActivityMemory2::deviceId"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2, deviceId) - 52usize];
    ["Offset of field: CUpti_ActivityMemory2::contextId"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2, contextId) - 56usize];
    ["Offset of field: CUpti_ActivityMemory2::streamId"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2, streamId) - 60usize];
    ["Offset of field: CUpti_ActivityMemory2::name"][::core::mem::offset_of!(CUpti_ActivityMemory2, name) - 64usize];
    ["Offset of field: CUpti_ActivityMemory2::isAsync"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2, isAsync) - 72usize];
    ["Offset of field: CUpti_ActivityMemory2::pad1"][::core::mem::offset_of!(CUpti_ActivityMemory2, pad1) - 76usize];
    ["Offset of field: CUpti_ActivityMemory2::memoryPoolConfig"]
        [::core::mem::offset_of!(CUpti_ActivityMemory2, memoryPoolConfig) - 80usize];
};
#[repr(C, packed(8))]
#[derive(Debug, Copy, Clone)]
pub struct CUpti_ActivityMemoryPool2 {
    pub kind: CUpti_ActivityKind,
    pub memoryPoolOperationType: CUpti_ActivityMemoryPoolOperationType,
    pub memoryPoolType: CUpti_ActivityMemoryPoolType,
    pub correlationId: u32,
    pub processId: u32,
    pub deviceId: u32,
    pub minBytesToKeep: usize,
    pub address: u64,
    pub size: u64,
    pub releaseThreshold: u64,
    pub timestamp: u64,
    pub utilizedSize: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_ActivityMemoryPool2"][::core::mem::size_of::<CUpti_ActivityMemoryPool2>() - 72usize];
    ["Alignment of CUpti_ActivityMemoryPool2"][::core::mem::align_of::<CUpti_ActivityMemoryPool2>() - 8usize];
    ["Offset of field: CUpti_ActivityMemoryPool2::kind"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool2, kind) - 0usize];
    ["Offset of field: CUpti_ActivityMemoryPool2::memoryPoolOperationType"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool2, memoryPoolOperationType) - 4usize];
    ["Offset of field: CUpti_ActivityMemoryPool2::memoryPoolType"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool2, memoryPoolType) - 8usize];
    ["Offset of field: CUpti_ActivityMemoryPool2::correlationId"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool2, correlationId) - 12usize];
    ["Offset of field: CUpti_ActivityMemoryPool2::processId"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool2, processId) - 16usize];
    ["Offset of field: CUpti_ActivityMemoryPool2::deviceId"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool2, deviceId) - 20usize];
    ["Offset of field: CUpti_ActivityMemoryPool2::minBytesToKeep"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool2, minBytesToKeep) - 24usize];
    ["Offset of field: CUpti_ActivityMemoryPool2::address"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool2, address) - 32usize];
    ["Offset of field: CUpti_ActivityMemoryPool2::size"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool2, size) - 40usize];
    ["Offset of field: CUpti_ActivityMemoryPool2::releaseThreshold"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool2, releaseThreshold) - 48usize];
    ["Offset of field: CUpti_ActivityMemoryPool2::timestamp"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool2, timestamp) - 56usize];
    ["Offset of field: CUpti_ActivityMemoryPool2::utilizedSize"]
        [::core::mem::offset_of!(CUpti_ActivityMemoryPool2, utilizedSize) - 64usize];
};
#[repr(C, packed(8))]
#[derive(Debug, Copy, Clone)]
pub struct CUpti_ActivityMemcpy5 {
    pub kind: CUpti_ActivityKind,
    pub copyKind: u8,
    pub srcKind: u8,
    pub dstKind: u8,
    pub flags: u8,
    pub bytes: u64,
    pub start: u64,
    pub end: u64,
    pub deviceId: u32,
    pub contextId: u32,
    pub streamId: u32,
    pub correlationId: u32,
    pub runtimeCorrelationId: u32,
    pub pad: u32,
    pub reserved0: *mut ::core::ffi::c_void,
    pub graphNodeId: u64,
    pub graphId: u32,
    pub channelID: u32,
    pub channelType: CUpti_ChannelType,
    pub pad2: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_ActivityMemcpy5"][::core::mem::size_of::<CUpti_ActivityMemcpy5>() - 88usize];
    ["Alignment of CUpti_ActivityMemcpy5"][::core::mem::align_of::<CUpti_ActivityMemcpy5>() - 8usize];
    ["Offset of field: CUpti_ActivityMemcpy5::kind"][::core::mem::offset_of!(CUpti_ActivityMemcpy5, kind) - 0usize];
    ["Offset of field: CUpti_ActivityMemcpy5::copyKind"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpy5, copyKind) - 4usize];
    ["Offset of field: CUpti_ActivityMemcpy5::srcKind"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpy5, srcKind) - 5usize];
    ["Offset of field: CUpti_ActivityMemcpy5::dstKind"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpy5, dstKind) - 6usize];
    ["Offset of field: CUpti_ActivityMemcpy5::flags"][::core::mem::offset_of!(CUpti_ActivityMemcpy5, flags) - 7usize];
    ["Offset of field: CUpti_ActivityMemcpy5::bytes"][::core::mem::offset_of!(CUpti_ActivityMemcpy5, bytes) - 8usize];
    ["Offset of field: CUpti_ActivityMemcpy5::start"][::core::mem::offset_of!(CUpti_ActivityMemcpy5, start) - 16usize];
    ["Offset of field: CUpti_ActivityMemcpy5::end"][::core::mem::offset_of!(CUpti_ActivityMemcpy5, end) - 24usize];
    ["Offset of field: CUpti_ActivityMemcpy5::deviceId"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpy5, deviceId) - 32usize];
    ["Offset of field: CUpti_ActivityMemcpy5::contextId"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpy5, contextId) - 36usize];
    ["Offset of field: CUpti_ActivityMemcpy5::streamId"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpy5, streamId) - 40usize];
    ["Offset of field: CUpti_ActivityMemcpy5::correlationId"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpy5, correlationId) - 44usize];
    ["Offset of field: CUpti_ActivityMemcpy5::runtimeCorrelationId"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpy5, runtimeCorrelationId) - 48usize];
    ["Offset of field: CUpti_ActivityMemcpy5::pad"][::core::mem::offset_of!(CUpti_ActivityMemcpy5, pad) - 52usize];
    ["Offset of field: CUpti_ActivityMemcpy5::reserved0"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpy5, reserved0) - 56usize];
    ["Offset of field: CUpti_ActivityMemcpy5::graphNodeId"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpy5, graphNodeId) - 64usize];
    ["Offset of field: CUpti_ActivityMemcpy5::graphId"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpy5, graphId) - 72usize];
    ["Offset of field: CUpti_ActivityMemcpy5::channelID"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpy5, channelID) - 76usize];
    ["Offset of field: CUpti_ActivityMemcpy5::channelType"]
        [::core::mem::offset_of!(CUpti_ActivityMemcpy5, channelType) - 80usize];
    ["Offset of field: CUpti_ActivityMemcpy5::pad2"][::core::mem::offset_of!(CUpti_ActivityMemcpy5, pad2) - 84usize];
};
impl CUpti_driver_api_trace_cbid_enum {
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemAlloc: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(29);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemAllocPitch: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(31);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemFree: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(33);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemAllocHost: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(37);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemFreeHost: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(38);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemHostAlloc: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(39);
    pub const CUPTI_DRIVER_TRACE_CBID_cuArrayCreate: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(87);
    pub const CUPTI_DRIVER_TRACE_CBID_cuArrayDestroy: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(89);
    pub const CUPTI_DRIVER_TRACE_CBID_cuArray3DCreate: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(90);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(243);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemAllocPitch_v2: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(244);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(245);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemHostAlloc_v2: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(271);
    pub const CUPTI_DRIVER_TRACE_CBID_cuArrayCreate_v2: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(272);
    pub const CUPTI_DRIVER_TRACE_CBID_cuArray3DCreate_v2: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(274);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemAllocHost_v2: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(294);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemHostRegister: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(301);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemHostUnregister: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(302);
    pub const CUPTI_DRIVER_TRACE_CBID_cuIpcOpenMemHandle: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(329);
    pub const CUPTI_DRIVER_TRACE_CBID_cuIpcCloseMemHandle: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(330);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMipmappedArrayCreate: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(347);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMipmappedArrayDestroy: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(349);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemAllocManaged: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(371);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemHostRegister_v2: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(379);
    pub const CUPTI_DRIVER_TRACE_CBID_cuImportExternalMemory: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(485);
    pub const CUPTI_DRIVER_TRACE_CBID_cuDestroyExternalMemory: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(488);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemAddressReserve: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(547);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemAddressFree: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(548);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemCreate: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(549);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemRelease: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(550);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemMap: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(551);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemUnmap: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(552);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemExportToShareableHandle: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(554);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemImportFromShareableHandle: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(555);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemRetainAllocationHandle: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(565);
    pub const CUPTI_DRIVER_TRACE_CBID_cuIpcOpenMemHandle_v2: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(567);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemMapArrayAsync: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(584);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemMapArrayAsync_ptsz: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(585);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemAllocAsync: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(598);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemAllocAsync_ptsz: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(599);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemFreeAsync: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(600);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemFreeAsync_ptsz: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(601);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemPoolTrimTo: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(602);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemPoolSetAttribute: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(603);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemPoolGetAttribute: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(604);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemPoolSetAccess: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(605);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemPoolCreate: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(607);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemPoolDestroy: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(608);
    pub const CUPTI_DRIVER_TRACE_CBID_cuDeviceSetMemPool: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(609);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemAllocFromPoolAsync: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(611);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemAllocFromPoolAsync_ptsz: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(612);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemPoolExportToShareableHandle: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(613);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemPoolImportFromShareableHandle: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(614);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemPoolExportPointer: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(615);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemPoolImportPointer: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(616);
    pub const CUPTI_DRIVER_TRACE_CBID_cuMemPoolGetAccess: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(617);
    pub const CUPTI_DRIVER_TRACE_CBID_cuGraphAddMemAllocNode: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(638);
    pub const CUPTI_DRIVER_TRACE_CBID_cuGraphAddMemFreeNode: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(639);
    pub const CUPTI_DRIVER_TRACE_CBID_cuDeviceGraphMemTrim: CUpti_driver_api_trace_cbid_enum =
        CUpti_driver_api_trace_cbid_enum(640);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUpti_driver_api_trace_cbid_enum(pub ::core::ffi::c_uint);
pub use self::CUpti_driver_api_trace_cbid_enum as CUpti_driver_api_trace_cbid;
unsafe extern "C" {
    pub fn cuptiGetResultString(result: CUptiResult, str_: *mut *const ::core::ffi::c_char) -> CUptiResult;
    pub fn cuptiGetVersion(version: *mut u32) -> CUptiResult;
    pub fn cuptiSubscribe(
        subscriber: *mut CUpti_SubscriberHandle,
        callback: CUpti_CallbackFunc,
        userdata: *mut ::core::ffi::c_void,
    ) -> CUptiResult;
    pub fn cuptiUnsubscribe(subscriber: CUpti_SubscriberHandle) -> CUptiResult;
    pub fn cuptiEnableCallback(
        enable: u32,
        subscriber: CUpti_SubscriberHandle,
        domain: CUpti_CallbackDomain,
        cbid: CUpti_CallbackId,
    ) -> CUptiResult;
    pub fn cuptiEnableDomain(
        enable: u32,
        subscriber: CUpti_SubscriberHandle,
        domain: CUpti_CallbackDomain,
    ) -> CUptiResult;
    pub fn cuptiGetCallbackName(
        domain: CUpti_CallbackDomain,
        cbid: u32,
        name: *mut *const ::core::ffi::c_char,
    ) -> CUptiResult;
    pub fn cuptiGetGraphNodeId(node: CUgraphNode, nodeId: *mut u64) -> CUptiResult;
    pub fn cuptiActivityEnable(kind: CUpti_ActivityKind) -> CUptiResult;
    pub fn cuptiActivityDisable(kind: CUpti_ActivityKind) -> CUptiResult;
    pub fn cuptiActivityGetNumDroppedRecords(context: CUcontext, streamId: u32, dropped: *mut usize) -> CUptiResult;
    pub fn cuptiActivityGetNextRecord(
        buffer: *mut u8,
        validBufferSizeBytes: usize,
        record: *mut *mut CUpti_Activity,
    ) -> CUptiResult;
    pub fn cuptiActivityRegisterCallbacks(
        funcBufferRequested: CUpti_BuffersCallbackRequestFunc,
        funcBufferCompleted: CUpti_BuffersCallbackCompleteFunc,
    ) -> CUptiResult;
    pub fn cuptiActivityFlushAll(flag: u32) -> CUptiResult;
    pub fn cuptiFinalize() -> CUptiResult;
    pub fn cuptiActivityRegisterTimestampCallback(funcTimestamp: CUpti_TimestampCallbackFunc) -> CUptiResult;
}
