//! Training progress by optimizer step.

use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize, Serializer};

/// Samples, loss and method of one optimizer step.
///
/// Written when the loss is known, which may be some steps later.
///
/// ```
/// use memlab_format::{decode_line, Record};
/// let line = br#"{"trained":12,"epoch":1,"batch":2,"phase":null,"samples":512,"duration":81250000,"loss":0.25,"way":"micro-batches","pieces":8,"offloaded":0}"#;
/// let Record::Trained(trained) = decode_line(line)? else { panic!() };
/// assert_eq!((trained.trained, trained.samples, trained.loss.map(|loss| loss.0)), (12, 512, Some(0.25)));
/// assert_eq!((trained.way.as_deref(), trained.pieces), (Some("micro-batches"), 8));
/// # Ok::<(), memlab_format::DecodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trained {
    /// The number of the step, as in [`Step`](super::Step).
    pub trained: u64,
    /// The epoch, from 0.
    #[serde(default)]
    pub epoch: u64,
    /// Index of the step in the epoch, from 0.
    #[serde(default)]
    pub batch: u64,
    /// Name of the trained model, if the program trains several.
    #[serde(default)]
    pub phase: Option<String>,
    /// Number of samples in the step.
    #[serde(default)]
    pub samples: u64,
    /// Nanoseconds since the end of the previous step.
    #[serde(default)]
    pub duration: u64,
    /// Loss of the step; `None`: not known.
    #[serde(default)]
    pub loss: Option<Loss>,
    /// Method that computed the gradients.
    #[serde(default)]
    pub way: Option<String>,
    /// Number of pieces that went through the model.
    #[serde(default)]
    pub pieces: u64,
    /// Bytes of activations copied to the host.
    #[serde(default)]
    pub offloaded: u64,
}

/// A loss; JSON strings `"NaN"`, `"inf"` and `"-inf"` stand for values that are not finite.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Loss(pub f64);

impl Serialize for Loss {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_finite() { serializer.serialize_f64(self.0) } else { serializer.collect_str(&self.0) }
    }
}

impl<'de> Deserialize<'de> for Loss {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(f64),
            Text(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Number(number) => Ok(Self(number)),
            Form::Text(text) => text.parse().map(Self).map_err(D::Error::custom),
        }
    }
}
