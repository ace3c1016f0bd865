//! Reads pickles of weights without executing them.
//!
//! A pickle is a program for a stack machine that can call any Python function. This reader knows the few functions
//! that weights files call. It refuses all others, and the error names them. `burn-store` 0.21 has a reader too, but it
//! ignores the strides of tensors, so it would read a transposed tensor in the wrong order.

use std::collections::HashMap;

/// Maximum number of bytes of a pickle. The pickle of a model has a few hundred kilobytes, without the numbers of its
/// tensors.
pub const MOST_BYTES: usize = 1 << 22;
/// Maximum number of values in a pickle. A tensor has about 25.
const MOST_VALUES: usize = 1 << 18;
/// Maximum number of axes of a tensor. The limit bounds memory, because each tensor copies its shape from a value that
/// many tensors may share.
const MOST_AXES: usize = 8;
/// Maximum number of bytes of the name of a module or function on the stack. Such names are copied from shared values
/// too.
const MOST_NAME: usize = 256;

/// The reason why a pickle cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PickleError {
    /// The pickle ends too early.
    #[error("it is truncated")]
    Truncated,
    /// The bytes are not a pickle, or the pickle is damaged.
    #[error("it is damaged: {0} at byte {1}")]
    Damaged(&'static str, usize),
    /// The pickle is too large.
    #[error(
        "it has more than {MOST_BYTES} bytes or {MOST_VALUES} values, more than any file of weights"
    )]
    TooLarge,
    /// The pickle has an operation that no weights file needs.
    #[error("it has the operation {0:#04x} at byte {1}, which no file of weights needs")]
    Operation(u8, usize),
    /// The pickle calls a Python function that no weights file needs.
    #[error(
        "it calls `{0}` of Python, which no file of weights needs and which may do harm; if you trust the file, save \
         its weights as safetensors"
    )]
    Call(String),
}

/// The index of a [`Value`] in a [`Pickle`].
pub type Id = usize;

/// A value of a pickle.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `None`, or a value that is not needed.
    None,
    /// A bool.
    Bool(bool),
    /// An integer of at most 64 bits.
    Int(i64),
    /// A float.
    Float(f64),
    /// A string.
    Text(String),
    /// Bytes.
    Bytes,
    /// A tuple.
    Tuple(Vec<Id>),
    /// A list.
    List(Vec<Id>),
    /// A dictionary, as entries in the order of the pickle.
    Dict(Vec<(Id, Id)>),
    /// A function or class, `module.name`.
    Global(String),
    /// A reference to something outside of the pickle, by the value that names it.
    Persistent(Id),
    /// A tensor.
    Tensor(StridedTensor),
}

/// The position of a tensor's numbers in a storage. Offset, shape and strides count numbers, not bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct StridedTensor {
    /// The value that names the storage.
    pub storage: Id,
    /// The index of the first number.
    pub offset: usize,
    /// The shape.
    pub shape: Vec<usize>,
    /// The distance between neighbours along each axis.
    pub strides: Vec<usize>,
}

/// The values of a pickle. Values refer to each other by index, so hostile nesting and cycles are harmless.
#[derive(Debug, Default)]
pub struct Pickle {
    values: Vec<Value>,
    /// The outermost value.
    pub top: Id,
}

impl Pickle {
    /// Reads one pickle at the beginning of `bytes`. Returns the pickle and its length in bytes.
    ///
    /// # Errors
    ///
    /// Returns a [`PickleError`] if the pickle is damaged, too large, or uses an operation or function that no weights
    /// file needs.
    pub fn read(bytes: &[u8]) -> Result<(Self, usize), PickleError> {
        let mut machine = Machine {
            bytes,
            at: 0,
            pickle: Self::default(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
        };
        while machine.step()? {
            if machine.pickle.values.len() > MOST_VALUES {
                return Err(PickleError::TooLarge);
            }
        }
        Ok((machine.pickle, machine.at))
    }

    /// Returns the value with the index `id`.
    pub fn get(&self, id: Id) -> &Value {
        &self.values[id]
    }

    /// Returns all values.
    pub fn values(&self) -> impl Iterator<Item = &Value> {
        self.values.iter()
    }

    /// Returns the value of a string key, if `id` is a dictionary with this key.
    pub fn field(&self, id: Id, key: &str) -> Option<Id> {
        let Value::Dict(entries) = self.get(id) else {
            return None;
        };
        let is_key = |id: Id| matches!(self.get(id), Value::Text(text) if text == key);
        // The last of equal keys counts.
        let found = entries.iter().rev().find(|(name, _)| is_key(*name));
        found.map(|(_, value)| *value)
    }

    /// Returns the value `id`, if it is a string.
    pub fn text(&self, id: Id) -> Option<&str> {
        match self.get(id) {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the value `id`, if it is an integer and not negative.
    pub fn size(&self, id: Id) -> Option<usize> {
        match self.get(id) {
            Value::Int(number) => usize::try_from(*number).ok(),
            _ => None,
        }
    }

    fn sizes(&self, id: Id) -> Option<Vec<usize>> {
        let (Value::Tuple(ids) | Value::List(ids)) = self.get(id) else {
            return None;
        };
        match ids.len() {
            ..=MOST_AXES => ids.iter().map(|id| self.size(*id)).collect(),
            _ => None,
        }
    }
}

/// The stack machine.
struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    pickle: Pickle,
    stack: Vec<Id>,
    /// Heights of the stack at its marks.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
}

impl<'a> Machine<'a> {
    /// Executes one operation. Returns whether more operations follow.
    fn step(&mut self) -> Result<bool, PickleError> {
        let start = self.at;
        let operation = self.take(1)?[0];
        match operation {
            // STOP
            b'.' => {
                self.pickle.top = self.pop()?;
                return Ok(false);
            }
            // PROTO, FRAME
            0x80 => drop(self.take(1)?),
            0x95 => drop(self.take(8)?),
            // MARK, POP, POP_MARK
            b'(' => self.marks.push(self.stack.len()),
            b'0' => drop(self.pop()?),
            b'1' => drop(self.pop_mark()?),
            b'N' => self.push(Value::None),
            0x88 => self.push(Value::Bool(true)),
            0x89 => self.push(Value::Bool(false)),
            // BININT, BININT1, BININT2, LONG1, BINFLOAT
            b'J' => {
                let number = i32::from_le_bytes(self.array()?);
                self.push(Value::Int(number.into()));
            }
            b'K' => {
                let number = self.take(1)?[0];
                self.push(Value::Int(number.into()));
            }
            b'M' => {
                let number = u16::from_le_bytes(self.array()?);
                self.push(Value::Int(number.into()));
            }
            0x8a => {
                let length = self.take(1)?[0].into();
                let number = long(self.take(length)?);
                self.push(number.map_or(Value::None, Value::Int));
            }
            b'G' => {
                let number = f64::from_be_bytes(self.array()?);
                self.push(Value::Float(number));
            }
            // BINUNICODE, BINUNICODE8, SHORT_BINUNICODE, BINSTRING, SHORT_BINSTRING
            b'X' | b'T' => {
                let length = u32::from_le_bytes(self.array()?) as usize;
                self.text(length)?;
            }
            0x8d => {
                let length = u64::from_le_bytes(self.array()?);
                self.text(usize::try_from(length).unwrap_or(usize::MAX))?;
            }
            0x8c | b'U' => {
                let length = self.take(1)?[0].into();
                self.text(length)?;
            }
            // BINBYTES, SHORT_BINBYTES
            b'B' => {
                let length = u32::from_le_bytes(self.array()?) as usize;
                self.take(length)?;
                self.push(Value::Bytes);
            }
            b'C' => {
                let length = self.take(1)?[0].into();
                self.take(length)?;
                self.push(Value::Bytes);
            }
            // EMPTY_TUPLE, TUPLE1, TUPLE2, TUPLE3, TUPLE
            b')' => self.push(Value::Tuple(Vec::new())),
            0x85..=0x87 => {
                let count = usize::from(operation - 0x84);
                let first = self.stack.len().checked_sub(count);
                let first = first.ok_or(self.damaged("the stack is empty"))?;
                let items = self.stack.split_off(first);
                self.push(Value::Tuple(items));
            }
            b't' => {
                let items = self.pop_mark()?;
                self.push(Value::Tuple(items));
            }
            // EMPTY_LIST, APPEND, APPENDS
            b']' => self.push(Value::List(Vec::new())),
            b'a' => {
                let item = self.pop()?;
                self.extend(vec![item])?;
            }
            b'e' => {
                let items = self.pop_mark()?;
                self.extend(items)?;
            }
            // EMPTY_DICT, SETITEM, SETITEMS
            b'}' => self.push(Value::Dict(Vec::new())),
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.insert(&[key, value])?;
            }
            b'u' => {
                let items = self.pop_mark()?;
                self.insert(&items)?;
            }
            // GLOBAL, STACK_GLOBAL
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.push(Value::Global(format!("{module}.{name}")));
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let name_of = |id| self.pickle.text(id).filter(|text| text.len() <= MOST_NAME);
                let pair = name_of(module).zip(name_of(name));
                let global = pair.map(|(module, name)| format!("{module}.{name}"));
                let global = global.ok_or(self.damaged("a function without a name"))?;
                self.push(Value::Global(global));
            }
            // REDUCE, BUILD, BINPERSID
            b'R' => {
                let (arguments, function) = (self.pop()?, self.pop()?);
                self.call(function, arguments)?;
            }
            b'b' => {
                let _state = self.pop()?;
                // An ordered dictionary has attributes, which are ignored.
                let object = *self
                    .stack
                    .last()
                    .ok_or(self.damaged("the stack is empty"))?;
                if !matches!(self.pickle.get(object), Value::Dict(_)) {
                    return Err(PickleError::Operation(operation, start));
                }
            }
            b'Q' => {
                let name = self.pop()?;
                self.push(Value::Persistent(name));
            }
            // BINPUT, LONG_BINPUT, MEMOIZE, BINGET, LONG_BINGET
            b'q' => {
                let place = self.take(1)?[0].into();
                self.memoize(place)?;
            }
            b'r' => {
                let place = u32::from_le_bytes(self.array()?);
                self.memoize(place)?;
            }
            0x94 => self.memoize(self.memo.len() as u32)?,
            b'h' => {
                let place = self.take(1)?[0].into();
                self.recall(place)?;
            }
            b'j' => {
                let place = u32::from_le_bytes(self.array()?);
                self.recall(place)?;
            }
            _ => return Err(PickleError::Operation(operation, start)),
        }
        Ok(true)
    }

    /// Executes one of the known functions.
    fn call(&mut self, function: Id, arguments: Id) -> Result<(), PickleError> {
        let Value::Global(name) = self.pickle.get(function) else {
            return Err(self.damaged("a call of something other than a function"));
        };
        let Value::Tuple(arguments) = self.pickle.get(arguments) else {
            return Err(self.damaged("a call without arguments"));
        };
        match (name.as_str(), arguments.as_slice()) {
            ("collections.OrderedDict", []) => self.push(Value::Dict(Vec::new())),
            ("torch.Size", &[sizes]) => self.stack.push(sizes),
            ("torch._utils._rebuild_parameter", &[tensor, ..]) => self.stack.push(tensor),
            ("torch._utils._rebuild_tensor_v2", &[storage, offset, shape, strides, ..]) => {
                let parts = (|| {
                    let Value::Persistent(storage) = *self.pickle.get(storage) else {
                        return None;
                    };
                    let tensor = StridedTensor {
                        storage,
                        offset: self.pickle.size(offset)?,
                        shape: self.pickle.sizes(shape)?,
                        strides: self.pickle.sizes(strides)?,
                    };
                    (tensor.shape.len() == tensor.strides.len()).then_some(tensor)
                })();
                let tensor = parts.ok_or(self.damaged("a tensor without storage or shape"))?;
                self.push(Value::Tensor(tensor));
            }
            _ => return Err(PickleError::Call(name.clone())),
        }
        Ok(())
    }

    fn push(&mut self, value: Value) {
        self.stack.push(self.pickle.values.len());
        self.pickle.values.push(value);
    }

    fn pop(&mut self) -> Result<Id, PickleError> {
        // Only values above the last mark can be popped. Values below it belong to an outer container.
        let lowest = self.marks.last().copied().unwrap_or(0);
        match self.stack.len() > lowest {
            true => Ok(self.stack.pop().unwrap_or_default()),
            false => Err(self.damaged("the stack is empty")),
        }
    }

    fn pop_mark(&mut self) -> Result<Vec<Id>, PickleError> {
        let mark = self.marks.pop();
        let mark = mark.filter(|mark| *mark <= self.stack.len());
        let mark = mark.ok_or(self.damaged("a mark is missing"))?;
        Ok(self.stack.split_off(mark))
    }

    fn extend(&mut self, items: Vec<Id>) -> Result<(), PickleError> {
        let damaged = self.damaged("items without a list");
        let list = *self.stack.last().ok_or(damaged.clone())?;
        match &mut self.pickle.values[list] {
            Value::List(list) => list.extend(items),
            _ => return Err(damaged),
        }
        Ok(())
    }

    fn insert(&mut self, items: &[Id]) -> Result<(), PickleError> {
        let damaged = self.damaged("items without a dictionary");
        let dict = *self.stack.last().ok_or(damaged.clone())?;
        let (pairs, []) = items.as_chunks::<2>() else {
            return Err(self.damaged("a key without a value"));
        };
        match &mut self.pickle.values[dict] {
            Value::Dict(dict) => dict.extend(pairs.iter().map(|&[key, value]| (key, value))),
            _ => return Err(damaged),
        }
        Ok(())
    }

    fn memoize(&mut self, place: u32) -> Result<(), PickleError> {
        let top = *self
            .stack
            .last()
            .ok_or(self.damaged("the stack is empty"))?;
        self.memo.insert(place, top);
        Ok(())
    }

    fn recall(&mut self, place: u32) -> Result<(), PickleError> {
        let found = self.memo.get(&place).copied();
        self.stack
            .push(found.ok_or(self.damaged("an unknown reference"))?);
        Ok(())
    }

    fn text(&mut self, length: usize) -> Result<(), PickleError> {
        let text = self.take(length)?;
        self.push(Value::Text(String::from_utf8_lossy(text).into_owned()));
        Ok(())
    }

    fn line(&mut self) -> Result<String, PickleError> {
        let rest = &self.bytes[self.at..];
        let end = rest.iter().position(|byte| *byte == b'\n');
        let line = &rest[..end.ok_or(PickleError::Truncated)?];
        self.at += line.len() + 1;
        Ok(String::from_utf8_lossy(line).into_owned())
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], PickleError> {
        let end = self.at.checked_add(count);
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or(PickleError::Truncated)?;
        self.at += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], PickleError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn damaged(&self, problem: &'static str) -> PickleError {
        PickleError::Damaged(problem, self.at)
    }
}

/// Parses an integer of any length, little-endian, two's complement; `None` if it has more than 64 bits.
fn long(bytes: &[u8]) -> Option<i64> {
    let sign = match bytes.last() {
        Some(last) if last & 0x80 != 0 => 0xff,
        _ => 0,
    };
    let mut number = [sign; 8];
    number.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(i64::from_le_bytes(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Pickle, PickleError> {
        Pickle::read(bytes).map(|(pickle, _)| pickle)
    }

    // pickle.dumps({"a": [1, -2, 300, 70000, 2**40, True, None, 1.5], "b": ("x", ())}, protocol=2)
    const PROTOCOL_2: &[u8] = b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01J\xfe\xff\xff\xffM,\x01Jp\x11\x01\x00\x8a\x06\x00\x00\x00\x00\x00\x01\x88NG?\xf8\x00\x00\x00\x00\x00\x00eX\x01\x00\x00\x00bq\x03X\x01\x00\x00\x00xq\x04)\x86q\x05u.";
    // The same with protocol 5.
    const PROTOCOL_5: &[u8] = b"\x80\x05\x95>\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94]\x94(K\x01J\xfe\xff\xff\xffM,\x01Jp\x11\x01\x00\x8a\x06\x00\x00\x00\x00\x00\x01\x88NG?\xf8\x00\x00\x00\x00\x00\x00e\x8c\x01b\x94\x8c\x01x\x94)\x86\x94u.";

    #[test]
    fn values_of_both_protocols_in_use_are_read() {
        for bytes in [PROTOCOL_2, PROTOCOL_5] {
            let (pickle, length) = Pickle::read(bytes).unwrap();
            assert_eq!(length, bytes.len());
            let list = pickle.field(pickle.top, "a").unwrap();
            let Value::List(items) = pickle.get(list) else {
                panic!("a list was expected");
            };
            let items: Vec<&Value> = items.iter().map(|id| pickle.get(*id)).collect();
            let numbers = [1, -2, 300, 70_000, 1 << 40].map(Value::Int);
            assert!(items[..5].iter().copied().eq(&numbers));
            let rest = [Value::Bool(true), Value::None, Value::Float(1.5)];
            assert!(items[5..].iter().copied().eq(&rest));
            let tuple = pickle.field(pickle.top, "b").unwrap();
            assert!(matches!(pickle.get(tuple), Value::Tuple(items) if items.len() == 2));
            assert_eq!(pickle.field(pickle.top, "c"), None);
        }
    }

    #[test]
    fn a_value_that_is_changed_after_it_was_stored_is_read_as_changed() {
        // a = [7]; [a, a], where a is memoized while it is still empty.
        let pickle = read(b"\x80\x02]q\x00(]q\x01K\x07ah\x01e.").unwrap();
        let Value::List(outer) = pickle.get(pickle.top) else {
            panic!("a list was expected");
        };
        assert_eq!(outer[0], outer[1]);
        assert!(matches!(pickle.get(outer[1]), Value::List(items) if items.len() == 1));
    }

    #[test]
    fn a_call_of_any_other_function_is_refused_by_its_name() {
        let error = read(b"\x80\x02cposix\nsystem\nX\x02\x00\x00\x00ls\x85R.").unwrap_err();
        assert!(error.to_string().contains("`posix.system`"), "{error}");
        let error = read(b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.").unwrap_err();
        assert_eq!(error, PickleError::Call("builtins.eval".into()));
        // INST, OBJ, NEWOBJ, EXT1, and BUILD on a number
        for bytes in [
            b"(ios\nsystem\n.".as_slice(),
            b"(cos\nsystem\no.",
            b"cos\nsystem\n)\x81.",
            b"\x82\x01.",
            b"K\x01}b.",
        ] {
            let error = read(bytes).unwrap_err();
            assert!(matches!(error, PickleError::Operation(..)), "{error}");
        }
    }

    #[test]
    fn a_truncated_or_damaged_pickle_is_an_error() {
        for bytes in [PROTOCOL_2, PROTOCOL_5] {
            for end in 0..bytes.len() {
                assert!(read(&bytes[..end]).is_err(), "the first {end} bytes");
            }
            for place in 0..bytes.len() {
                for byte in [0x00, 0x28, 0x52, 0x86, 0xff] {
                    let mut bytes = bytes.to_vec();
                    bytes[place] = byte;
                    // Some changes give other values; no change may cause a panic.
                    read(&bytes).ok();
                }
            }
        }
    }

    #[test]
    fn shapes_and_names_that_are_shared_are_short() {
        // Tensors with eight and nine axes, and functions with names of 256 and 257 bytes.
        let storage = b"X\x01\x00\x00\x00sQ".as_slice();
        let shape = |axes: usize| [b"(".as_slice(), &b"K\x01".repeat(axes), b"t"].concat();
        let tensor = |axes: usize| {
            let arguments = [storage, b"K\x00", &shape(axes), &shape(axes)].concat();
            let call = b"ctorch._utils\n_rebuild_tensor_v2\n(".as_slice();
            read(&[b"\x80\x02".as_slice(), call, &arguments, b"tR."].concat())
        };
        assert!(
            matches!(tensor(8), Ok(pickle) if matches!(pickle.get(pickle.top), Value::Tensor(_)))
        );
        assert!(matches!(tensor(9), Err(PickleError::Damaged(..))));
        let name = |length: u32| {
            let text = [
                b"X".as_slice(),
                &length.to_le_bytes(),
                &b"a".repeat(length as usize),
            ]
            .concat();
            read(&[b"\x80\x04".as_slice(), &text, &text, b"\x93."].concat())
        };
        assert!(name(256).is_ok());
        assert!(matches!(name(257), Err(PickleError::Damaged(..))));
    }

    #[test]
    fn deep_nesting_and_cycles_take_no_stack() {
        let mut deep = b"\x80\x02)".to_vec();
        deep.extend([0x85].repeat(250_000));
        deep.push(b'.');
        drop(read(&deep).unwrap());
        let many = [b")".repeat(1 << 19), b".".to_vec()].concat();
        assert_eq!(read(&many).unwrap_err(), PickleError::TooLarge);
        // A list that contains itself.
        drop(read(b"]q\x00h\x00a.").unwrap());
    }
}
