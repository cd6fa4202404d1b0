// Each rank has locked a byte of one file: the system drops the lock with the process, however that
// ends. A new run must find them all free, for ranks may outlive rank 0 by a moment, and write.
// Read next: run_log.cpp.
#include "examples/run_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "core/error.h"
#include "dist/launch.h"
#include "examples/checkpoint.h"
#include "examples/output_file.h"

namespace lockstep {

namespace {

int open_lock(const std::string& run) {
  const std::string path = run + "/lock";
  const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor < 0) fail_to("create", path, errno);
  return descriptor;
}

// F_WRLCK or F_UNLCK on `count` bytes from `first`, 0: on all from there. The lock belongs to the
// descriptor, not to the process, so that ranks which are threads have one each. False if another
// has one of the bytes.
bool lock_bytes(int descriptor, short type, int64_t first, int64_t count) {
  struct flock range = {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = first;
  range.l_len = count;
  return fcntl(descriptor, F_OFD_SETLK, &range) == 0;
}

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
  lock_ = open_lock(path);
  if (!lock_bytes(lock_, F_WRLCK, 0, 0)) {
    const int reason = errno;
    const std::string who = holder(lock_);
    close(lock_);
    if (reason != EAGAIN && reason != EACCES) fail_to("lock", lock, reason);
    fail(
        Exit::restart,
        "[run] {} is in use by {}, or by ranks that it left behind; wait until that run has ended, "
        "or choose another run_dir",
        path, who);
  }
  lock_bytes(lock_, F_UNLCK, 1, 0);  // for the other ranks
  const std::string me = fmt::format("process {} on host {}\n", getpid(), host_name());
  if (ftruncate(lock_, 0) != 0 || pwrite(lock_, me.data(), me.size(), 0) < 0)
    fail_to("write", lock, errno);

  std::filesystem::create_directories(checkpoints(), error);
  if (error) fail_to("create", checkpoints(), error.value());
  if (access(checkpoints().c_str(), W_OK | X_OK) != 0) fail_to("write to", checkpoints(), errno);
  sync_path(path);
  sync_path(std::filesystem::absolute(path + "/..").lexically_normal());
}

RunFolder::~RunFolder() {
  close(lock_);
}

RunMember::RunMember(const std::string& run, int rank) : lock_(open_lock(run)) {
  if (lock_bytes(lock_, F_WRLCK, rank, 1)) return;
  const int reason = errno;
  close(lock_);
  fail_to("lock", run + "/lock", reason);
}

RunMember::~RunMember() {
  close(lock_);
}

std::string RunFolder::checkpoint_path(int64_t step) const {
  return lockstep::checkpoint_path(checkpoints(), step);
}

void RunFolder::write_config(const std::string& json) const {
  replace_file(config_path(), json);
}

}  // namespace lockstep
