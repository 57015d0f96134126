//! Bytes to zero, as fast as this CPU can.
