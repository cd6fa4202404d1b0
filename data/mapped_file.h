// A file mapped read-only into memory: the system pages in what is touched and may drop it again,
// so a corpus may be larger than the memory. The mapping is shared by all threads and ranks of a
// host, and no descriptor is held, so a corpus may have thousands of files. Read next: shard.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

class MappedFile {
 public:
  // Exit::data if the file cannot be opened or is not a regular file. An empty file is allowed.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }
  const std::byte* data() const { return data_; }
  std::string_view text() const {
    return {reinterpret_cast<const char*>(data_), static_cast<size_t>(size_)};
  }

  // Exit::data if the file is gone or has another size by now: touching a page behind the end of a
  // file that was cut would kill the process with SIGBUS, and no message. Costs one stat.
  void check_size() const;

 private:
  std::string path_;
  int64_t size_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace lockstep
