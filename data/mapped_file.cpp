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
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0)
    fail(Exit::data, "[data] cannot open {}: {}; check the path", path, std::strerror(errno));
  struct stat status {};
  const bool regular = fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  size_ = status.st_size;
  void* mapped = nullptr;
  if (regular && size_ > 0)  // mmap refuses a length of zero
    mapped = mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor, 0);
  const int reason = errno;
  close(descriptor);
  if (!regular)
    fail(Exit::data, "[data] {} is not a regular file; name a file that can be mapped", path);
  if (mapped == MAP_FAILED)
    fail(Exit::data, "[data] cannot map {} ({} bytes): {}", path, size_, std::strerror(reason));
  data_ = static_cast<std::byte*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_) munmap(data_, size_);
}

void MappedFile::check_size() const {
  struct stat status {};
  if (stat(path_.c_str(), &status) != 0)
    fail(Exit::data, "[data] {} was opened and is gone now ({}); leave files that a run reads",
         path_, std::strerror(errno));
  if (status.st_size != size_)
    fail(Exit::data,
         "[data] {} had {} bytes when it was opened and has {} now; do not change files that a run "
         "reads",
         path_, size_, status.st_size);
}

}  // namespace lockstep
