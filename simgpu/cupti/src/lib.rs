//! The simulated CUPTI: callbacks and activity records of the calls and the work that the simulated runtime and driver tell of.
//!
//! Kernels compute nothing there, so their times follow a rule (`timeline`). Records have the newest layouts (CUDA 13.2):
//! each is an older one with fields appended, so programs that were compiled for CUDA 12 read them too.
//!
//! # Layers
//!
//! ```text
//! activity, callbacks, queries    entry points
//! source       where calls and work are told of
//! calls        the calls of a thread, and the records that they make
//! work         the records of work
//! nodes        the subscriber's callbacks for nodes of graphs
//! subscriber   who is called back
//! buffers      the program's buffers, and the thread that returns them
//! external     external correlation ids of a thread
//! records      layouts
//! settings     which records are wanted
//! timeline     when the device does what
//! clock        timestamps
//! ids          numbers for handles, names that stay
//! names        functions and their callback ids
//! result       error codes
//! ```

mod activity;
mod buffers;
mod callbacks;
mod calls;
mod clock;
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
