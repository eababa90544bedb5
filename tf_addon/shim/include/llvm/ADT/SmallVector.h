// See ArrayRef.h.
#pragma once
#include <vector>

#include "llvm/ADT/ArrayRef.h"

namespace llvm {
template <typename T, unsigned N = 4>
class SmallVector : public std::vector<T> {
 public:
  operator ArrayRef<T>() const { return {}; }
};
}  // namespace llvm
