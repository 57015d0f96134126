// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory with a forbidden page on either side.
//!
//! Under Miri it is a plain allocation of exactly the accessible bytes: Miri knows its ends by
//! itself.
//!
//! # Safety
//!
//! [`Fenced`] owns one private anonymous mappingand unmaps it when dropped; only the middle is
//! accessible.
#![cfg_attr(not(miri), expect(unsafe_code, reason = "maps memory to test on"))]

/// The base page of every test machine.
pub(crate) const PAGE: usize = 4096;

#[cfg(miri)]
pub(crate) use owned::Fenced;

#[cfg(not(miri))]
pub(crate) use mapped::Fenced;

#[cfg(miri)]
mod owned {
    /// A page, so that the allocation is aligned to one.
    #[derive(Clone, Copy)]
    #[repr(align(4096))]
    #[expect(dead_code, reason = "read as bytes")]
    struct Page([u8; super::PAGE]);

    pub(crate) struct Fenced(Vec<Page>);

    impl Fenced {
        pub(crate) fn new(len: usize, fill: u8) -> Self {
            Self(vec![Page([fill; super::PAGE]); len.div_ceil(super::PAGE)])
        }

        pub(crate) fn bytes(&mut self) -> &mut [u8] {
            let pages = self.0.as_mut_ptr_range();
            let len = self.0.len() * super::PAGE;
            // SAFETY: the pages lie back to back, each all bytes, and are borrowed with `self`.
            #[expect(unsafe_code, reason = "a slice of pages is a slice of bytes")]
            unsafe {
                std::slice::from_raw_parts_mut(pages.start.cast(), len)
            }
        }
    }
}

#[cfg(not(miri))]
mod mapped {
    use std::ptr::{NonNull, null_mut};
    use std::slice;

    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

    /// Accessible bytes between two pages that kill a process that touches them.
    #[derive(Debug)]
    pub(crate) struct Fenced {
        mapping: NonNull<u8>,
        page: usize,
        len: usize,
    }

    impl Fenced {
        /// At least `len` accessible bytes, rounded up to pages, all of them `fill`.
        pub(crate) fn new(len: usize, fill: u8) -> Self {
            let page = rustix::param::page_size();
            let len = len.next_multiple_of(page);
            // SAFETY: a new mapping at an address of the kernel's choice is disjoint from all
            // others.
            let mapping = unsafe {
                mmap_anonymous(null_mut(), len + 2 * page, ProtFlags::empty(), MapFlags::PRIVATE)
            };
            let mapping = NonNull::new(mapping.expect("mmap").cast::<u8>()).expect("not at 0");
            let mut fenced = Self { mapping, page, len };
            let middle = fenced.start().cast();
            // SAFETY: the middle of the mapping made above, still unused.
            unsafe { mprotect(middle, len, MprotectFlags::READ | MprotectFlags::WRITE) }
                .expect("mprotect");
            fenced.bytes().fill(fill);
            fenced
        }

        fn start(&self) -> *mut u8 {
            // SAFETY: the mapping is two pages longer than `len`.
            unsafe { self.mapping.as_ptr().add(self.page) }
        }

        /// The accessible bytes.
        pub(crate) fn bytes(&mut self) -> &mut [u8] {
            // SAFETY: readable and writable since `new`, initialised by the kernel, borrowed with
            // `self`.
            unsafe { slice::from_raw_parts_mut(self.start(), self.len) }
        }
    }

    impl Drop for Fenced {
        fn drop(&mut self) {
            // SAFETY: the mapping made in `new`; all borrows have ended.
            unsafe { munmap(self.mapping.as_ptr().cast(), self.len + 2 * self.page) }
                .expect("munmap");
        }
    }
}
