// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An unwritable page ends a clear, and the process goes on.
//!
//! # Theory of operation
//!
//! The kernel answers a store to a poisoned page, or to one that a file no longer has, with SIGBUS
//! at the storing instruction. All stores of all methods but the portable one are made by leaf
//! functions in one section of the executable (`arch::leaf`). [`install`] sets one handler for the
//! process. It looks at the interrupted program counter:
//!
//! - Inside the section, and the signal was raised by that very instruction: it writes the address
//!   and `si_code` into the saved result registers, points the saved program counter at the
//!   section's `ret`, and returns. The loop is over, its caller sees the failure as a result, and
//!   [`Outcome::Poisoned`](crate::Outcome::Poisoned) follows.
//! - Anywhere else, sent by `kill`, or about untouched memory (`BUS_MCEERR_AO`): it applies the
//!   disposition that it found when it was installed.
//!
//! There is no state per thread: any number of threads may clear and fail at once, at no cost to a
//! clear.
//!
//! Limits: a thread that blocks SIGBUS dies of it, as the kernel prescribes for synchronous
//! signals. A handler of SIGBUS that is installed later must pass on signals from elsewhere to the
//! one that it replaced.
//!
//! # Safety
//!
//! The handler runs in a signal frame: it calls nothing but `sigaction`, takes no lock and
//! allocates nothing. It changes saved registers only where the leaf rules make a return legal.
#![expect(unsafe_code, reason = "a signal handler, and registers of the interrupted thread")]

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr;
use std::io;
use std::sync::OnceLock;

use crate::arch::leaf::Trap;

/// Proof that the handler has been installed.
#[derive(Clone, Copy, Debug)]
pub struct Guard(());

/// What SIGBUS did before.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler of SIGBUS for this process; from the second call on, does nothing.
///
/// # Errors
///
/// Those of `sigaction(2)`, which has none for a catchable signal and a valid handler.
pub fn install() -> io::Result<Guard> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        // The old disposition is on record before the handler can run.
        let previous =
            disposition(None).map_err(|error| error.raw_os_error().unwrap_or(libc::EINVAL))?;
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_sigbus;
        let mut ours = *PREVIOUS.get_or_init(|| previous);
        ours.sa_sigaction = handler as *const () as usize;
        // On the alternate stack where the thread has one: the language's own handlers do the same.
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        disposition(Some(&ours)).map_err(|error| error.raw_os_error().unwrap_or(libc::EINVAL))?;
        Ok(())
    });
    installed.map(|()| Guard(())).map_err(io::Error::from_raw_os_error)
}

/// Sets the disposition of SIGBUS where one is given; returns the one before.
fn disposition(new: Option<&libc::sigaction>) -> io::Result<libc::sigaction> {
    let mut old = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: `new` is null or a complete sigaction with a handler that keeps the rules above;
    // `old` is valid for writes.
    let result = unsafe {
        libc::sigaction(libc::SIGBUS, new.map_or(ptr::null(), ptr::from_ref), old.as_mut_ptr())
    };
    if result == 0 {
        // SAFETY: zeroed is a valid sigaction, and the call has filled it in.
        Ok(unsafe { old.assume_init() })
    } else {
        Err(io::Error::last_os_error())
    }
}

extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid siginfo.
    let code = unsafe { (*info).si_code };
    // Codes of a store that failed; BUS_MCEERR_AO and SI_USER may come while a loop runs, from
    // elsewhere.
    let synchronous = usize::try_from(code)
        .ok()
        .filter(|code| matches!(*code, Trap::UNBACKED | Trap::ABORT | Trap::MEMORY_ERROR));
    // SAFETY: with SA_SIGINFO the third argument is the interrupted thread's ucontext, ours alone
    // until we return.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext };
    if let Some(code) = synchronous
        && in_leaf(program_counter(registers))
    {
        // SAFETY: with SA_SIGINFO the kernel passes a valid siginfo.
        let info = unsafe { &*info };
        // SAFETY: the codes above come with an address.
        let address = unsafe { info.si_addr() }.addr();
        land(registers, Trap { address, code });
        return;
    }
    as_before(signal, info, context);
}

/// Whether an address lies in the section of the store loops.
fn in_leaf(address: usize) -> bool {
    // The linker defines these two for every section with an identifier as its name.
    unsafe extern "C" {
        #[link_name = "__start_prezero_leaf"]
        static START: u8;
        #[link_name = "__stop_prezero_leaf"]
        static STOP: u8;
    }
    let start = (&raw const START).addr();
    let stop = (&raw const STOP).addr();
    (start..stop).contains(&address)
}

#[cfg(target_arch = "x86_64")]
#[expect(
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    reason = "a register is 64 bits, signed or not"
)]
fn program_counter(registers: &libc::mcontext_t) -> usize {
    registers.gregs[libc::REG_RIP as usize] as usize
}

/// Makes the interrupted loop return `trap`.
#[cfg(target_arch = "x86_64")]
#[expect(clippy::cast_possible_wrap, reason = "a register is 64 bits, signed or not")]
fn land(registers: &mut libc::mcontext_t, trap: Trap) {
    let landing = crate::arch::x86_64::leaf::landing as *const () as usize;
    registers.gregs[libc::REG_RAX as usize] = trap.address as i64;
    registers.gregs[libc::REG_RDX as usize] = trap.code as i64;
    registers.gregs[libc::REG_RIP as usize] = landing as i64;
}

#[cfg(target_arch = "aarch64")]
#[expect(clippy::cast_possible_truncation, reason = "a register is as wide as an address")]
fn program_counter(registers: &libc::mcontext_t) -> usize {
    registers.pc as usize
}

/// Makes the interrupted loop return `trap`.
#[cfg(target_arch = "aarch64")]
fn land(registers: &mut libc::mcontext_t, trap: Trap) {
    let landing = crate::arch::aarch64::leaf::landing as *const () as usize;
    registers.regs[0] = trap.address as u64;
    registers.regs[1] = trap.code as u64;
    registers.pc = landing as u64;
}

/// What SIGBUS did before [`install`].
fn as_before(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(previous) = PREVIOUS.get() else { return };
    match previous.sa_sigaction {
        // The kernel overrides an ignored fault, and a store that faults again gets the default: a
        // core dump at the right instruction. A signal that a process sent is sent once more, and
        // gets the default when the handler returns.
        libc::SIG_DFL => {
            let _ = disposition(Some(previous));
            // SAFETY: reads the siginfo that the kernel passed.
            if unsafe { (*info).si_code } <= 0 {
                // SAFETY: `raise` is safe to call from a handler.
                unsafe { libc::raise(signal) };
            }
        }
        libc::SIG_IGN => {
            // SAFETY: reads the siginfo that the kernel passed.
            if unsafe { (*info).si_code } > 0 {
                let _ = disposition(Some(previous));
            }
        }
        handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: the address of a handler that was installed with SA_SIGINFO, hence of this
            // type.
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                unsafe { core::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: the address of a handler that was installed without SA_SIGINFO, hence of this
            // type.
            let handler: extern "C" fn(c_int) = unsafe { core::mem::transmute(handler) };
            handler(signal);
        }
    }
}
