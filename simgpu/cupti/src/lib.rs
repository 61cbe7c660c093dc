//! The simulated CUPTI: callbacks and activity records of the calls and the work that the simulated runtime and driver
//! report.
//!
//! Kernels compute nothing, so their times are estimates (`durations`). Records have the newest layouts (CUDA 13.2).
//! Each is an older one with fields appended, so programs compiled for CUDA 12 read them too.
//!
//! # Layers
//!
//! ```text
//! activity, callbacks, queries    entry points
//! source       receives calls and work
//! calls        the calls of a thread, and their records
//! work         the records of work
//! nodes        the subscriber's callbacks for nodes of graphs
//! subscriber   the subscriber's function and its calls
//! buffers      the program's buffers, and the thread that returns them
//! external     external correlation ids of a thread
//! records      layouts
//! settings     enabled records
//! timeline     times of the device's work
//! durations    estimates of durations
//! clock        timestamps
//! ids          numbers for handles, permanent names
//! names        functions and their callback ids
//! result       error codes
//! ```

mod activity;
mod buffers;
mod callbacks;
mod calls;
mod clock;
mod durations;
mod external;
mod ids;
mod names;
mod nodes;
mod queries;
mod records;
mod result;
mod settings;
mod source;
mod subscriber;
mod timeline;
mod work;
