// TensorFlow 2.19's wheel includes this header of LLVM's without shipping it.  Nothing here uses what it declares:
// the members that XLA's own header names are enough.
#pragma once
#include <cstddef>

namespace llvm {
template <typename T>
class ArrayRef {
 public:
  const T* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  const T* data_ = nullptr;
  size_t size_ = 0;
};
}  // namespace llvm
