// safetensors, the file format in which tensors leave Lockstep, so that Python reads them:
//   8 bytes: length of the header, little-endian; the header, JSON, padded with spaces to 8 bytes:
//   {"__metadata__": {text: text}, name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [b,
//   e]}}; the elements, row-major, little-endian, offsets counted from the header's end, without
//   holes.
// Nothing here knows what the tensors mean. Read next: output_file.h.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/tensor.h"
#include "data/mapped_file.h"
#include "examples/output_file.h"

namespace lockstep {

using TextMap = std::map<std::string, std::string>;

// What the format calls an element type: "F32", "BF16", ...
const char* safetensors_name(DType dtype);

// Writes contiguous host tensors straight from their memory, wider element types first so that all
// are aligned, and syncs the file. Errors as for OutputFile; a file that failed is left cut.
FileSum write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                          const TextMap& metadata = {});

// Reads through a mapping. The constructor checks the whole header: afterwards every tensor lies
// inside the file and no two overlap. All errors are Exit::data and name the file.
class SafetensorsFile {
 public:
  struct Entry {
    std::string name;
    std::string dtype;  // as in the file: "F32", "BF16", "I64", ...
    Shape shape;
    int64_t begin, end;  // bytes, from the end of the header
  };

  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::vector<Entry>& entries() const { return entries_; }  // in the order of their bytes
  const TextMap& metadata() const { return metadata_; }
  bool contains(const std::string& name) const { return index_.contains(name); }

  // Copies a tensor into memory that exists: contiguous, of the same element type and shape.
  void read(const std::string& name, const Tensor& into) const;
  // A new tensor. Error for an element type that Lockstep has not (F16, I64, ...).
  Tensor load(const std::string& name) const;
  // The bytes of a tensor where they are mapped, not aligned: to read parts of it.
  std::span<const std::byte> bytes(const std::string& name) const;

 private:
  const Entry& entry(const std::string& name) const;

  MappedFile file_;
  int64_t data_begin_ = 0;
  std::vector<Entry> entries_;
  std::unordered_map<std::string, size_t> index_;
  TextMap metadata_;
};

}  // namespace lockstep
