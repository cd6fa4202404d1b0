// The lock is flock(2) on a file: the system drops it with the process, however that ends.
// Read next: run_log.cpp.
#include "examples/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "core/error.h"
#include "dist/launch.h"
#include "examples/checkpoint.h"
#include "examples/output_file.h"

namespace lockstep {

namespace {

// The holder writes its name after it has the lock, so for a moment there may be none.
std::string holder(int descriptor) {
  char text[300];
  const ssize_t length = pread(descriptor, text, sizeof text, 0);
  const std::string name(text, length > 0 ? length : 0);
  return name.empty() ? "another process" : name.substr(0, name.find('\n'));
}

}  // namespace

RunFolder::RunFolder(const std::string& path) : path_(path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail_to("create", path, error.value());
  const std::string lock = path + "/lock";
  lock_ = open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_ < 0) fail_to("create", lock, errno);
  if (flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    const std::string who = holder(lock_);
    close(lock_);
    if (reason != EWOULDBLOCK) fail_to("lock", lock, reason);
    fail(Exit::restart,
         "[run] {} is in use by {}; wait until that run has ended, or choose another run_dir", path,
         who);
  }
  const std::string me = fmt::format("process {} on host {}\n", getpid(), host_name());
  if (ftruncate(lock_, 0) != 0 || pwrite(lock_, me.data(), me.size(), 0) < 0)
    fail_to("write", lock, errno);

  std::filesystem::create_directories(checkpoints(), error);
  if (error) fail_to("create", checkpoints(), error.value());
  sync_folder(path);
  sync_folder(std::filesystem::absolute(path + "/..").lexically_normal());
}

RunFolder::~RunFolder() {
  close(lock_);
}

std::string RunFolder::checkpoint_path(int64_t step) const {
  return lockstep::checkpoint_path(checkpoints(), step);
}

void RunFolder::write_config(const std::string& json) const {
  replace_file(config_path(), json);
}

}  // namespace lockstep
