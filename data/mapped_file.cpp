// Mapping a file. Read next: shard.cpp.
#include "data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace lockstep {

MappedFile::MappedFile(const std::string& path) : path_(path) {
  descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0)
    fail(Exit::data, "[data] cannot open {}: {}; check the path", path, std::strerror(errno));
  struct stat status {};
  const bool known = fstat(descriptor_, &status) == 0;
  if (!known || !S_ISREG(status.st_mode)) {
    close(descriptor_);
    fail(Exit::data, "[data] {} is not a regular file; name a file that can be mapped", path);
  }
  size_ = status.st_size;
  if (size_ == 0) return;  // mmap refuses a length of zero
  void* mapped = mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor_, 0);
  if (mapped == MAP_FAILED) {
    const int reason = errno;
    close(descriptor_);
    fail(Exit::data, "[data] cannot map {} ({} bytes): {}", path, size_, std::strerror(reason));
  }
  data_ = static_cast<std::byte*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_) munmap(data_, size_);
  close(descriptor_);
}

void MappedFile::check_size() const {
  struct stat status {};
  if (fstat(descriptor_, &status) != 0 || status.st_size != size_)
    fail(Exit::data,
         "[data] {} had {} bytes when it was opened and has {} now; do not change files that a run "
         "reads",
         path_, size_, status.st_size);
}

}  // namespace lockstep
