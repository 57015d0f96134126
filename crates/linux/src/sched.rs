// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The calling *thread's* CPUs, nice value and scheduling policy. Linux keeps all three per thread;
//! threads and processes started afterwards inherit them, so a worker sets them first thing.

use crate::cpuset::CpuSet;
use crate::error::{Advise, Errno, Error, ErrorContext, Result};
use crate::raw::{self, Mask};

/// A scheduling policy (sched(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// `SCHED_OTHER`, everybody's.
    Other,
    /// `SCHED_BATCH`.
    Batch,
    /// `SCHED_IDLE`: runs on idle CPUs.
    Idle,
    /// A real-time, deadline or newer policy, by its number.
    Special(i32),
}

/// Runs the thread on `cpus` only.
///
/// # Errors
/// EINVAL if none of them is online and allowed by the cpuset.
pub fn set_affinity(cpus: &CpuSet) -> Result<()> {
    if cpus.is_empty() {
        return Err(Error::invalid("cpu list", "\"\"", "names no cpu"));
    }
    raw::sched_setaffinity(&Mask::from_bits(cpus.iter()))
        .or_call(|| format!("sched_setaffinity(0, {cpus})"))
        .advise(Errno::INVAL, "none of these cpus is online and allowed here")
}

/// The CPUs that the thread may run on.
pub fn affinity() -> Result<CpuSet> {
    let mask = raw::sched_getaffinity(0).or_call(|| "sched_getaffinity(0)".into())?;
    Ok(mask.bits().collect())
}

/// Sets the nice value, -20 to 19; the kernel clamps what lies outside.
///
/// # Errors
/// EACCES when lowering it without `CAP_SYS_NICE`.
pub fn set_nice(nice: i32) -> Result<()> {
    rustix::process::setpriority_process(None, nice)
        .or_call(|| format!("setpriority(PRIO_PROCESS, 0, {nice})"))
        .advise(Errno::ACCESS, "a nice value below the present one needs CAP_SYS_NICE")
}

/// The nice value.
pub fn nice() -> Result<i32> {
    rustix::process::getpriority_process(None).or_call(|| "getpriority(PRIO_PROCESS, 0)".into())
}

/// `SCHED_IDLE`; the nice value stays and counts among idle threads.
pub fn set_idle() -> Result<()> {
    raw::sched_setscheduler(libc::SCHED_IDLE).or_call(|| "sched_setscheduler(0, SCHED_IDLE)".into())
}

/// Gives the calling thread the CPUs, policy, priority and nice value of another one, by its
/// number.
///
/// A deadline reservation is not copied: two threads cannot have one, so a copy of a deadline
/// thread runs under `SCHED_OTHER`.
///
/// # Errors
/// ESRCH if there is no such thread; [`Error::is_denied`] where its priority needs `CAP_SYS_NICE`;
/// EINVAL if none of its CPUs is allowed here.
pub fn copy_scheduling(thread: u32) -> Result<()> {
    const SCHED_DEADLINE: u32 = 6;
    let number = i32::try_from(thread).map_err(|_| {
        Error::invalid("thread", thread, "is larger than any process or thread number")
    })?;
    let theirs =
        raw::sched_getattr(number).or_call(|| format!("sched_getattr({thread}, 48, 0)"))?;
    let ours = match theirs.policy {
        SCHED_DEADLINE => raw::SchedAttr::default(),
        // Neither its flags, which are about its own children, nor a slice.
        policy => raw::SchedAttr {
            policy,
            nice: theirs.nice,
            priority: theirs.priority,
            ..raw::SchedAttr::default()
        },
    };
    raw::sched_setattr(ours)
        .or_call(|| format!("sched_setattr(0, {ours:?}, 0)"))
        .advise(Errno::PERM, "a higher priority than the present one needs CAP_SYS_NICE")?;
    // Which the call above ignores under SCHED_IDLE.
    set_nice(theirs.nice)?;
    let cpus = raw::sched_getaffinity(number).or_call(|| format!("sched_getaffinity({thread})"))?;
    set_affinity(&cpus.bits().collect())
}

/// The scheduling policy.
pub fn policy() -> Result<Policy> {
    // Bit 30 says that children start with the default policy; it is no policy of its own.
    let number = raw::sched_getscheduler().or_call(|| "sched_getscheduler(0)".into())? & !(1 << 30);
    Ok(match number {
        libc::SCHED_OTHER => Policy::Other,
        libc::SCHED_BATCH => Policy::Batch,
        libc::SCHED_IDLE => Policy::Idle,
        other => Policy::Special(other),
    })
}
