// From environment variables, /proc and the scheduler. Read next: links.h.
#include "dist/launch.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <string_view>

#include "core/error.h"
#include "core/plural.h"

extern char** environ;

namespace lockstep {

namespace {

// How launchers announce the number of ranks, innermost first: the first one found is right,
// because mpirun may start one rank inside a Slurm allocation for many.
constexpr std::array kWorldSizeVariables = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE",
                                            "SLURM_NTASKS"};

constexpr std::array<std::string_view, 17> kPrefixes = {"OMP_",      "GOMP_",
                                                        "KMP_",      "DNNL_",
                                                        "ONEDNN_",   "OPENBLAS_",
                                                        "MKL_",      "OMPI_MCA_",
                                                        "UCX_",      "NCCL_",
                                                        "CUBLAS_",   "CUDNN_",
                                                        "CUDA_",     "NVIDIA_TF32_OVERRIDE",
                                                        "MALLOC_",   "GLIBC_TUNABLES",
                                                        "LD_PRELOAD"};

// mpirun's own letters to its ranks and what names a device per rank.
constexpr std::array<std::string_view, 9> kNotCompared = {
    "OMPI_MCA_ess",          "OMPI_MCA_orte_",       "OMPI_MCA_pmix",
    "OMPI_MCA_initial_wdir", "OMPI_MCA_plm",         "OMPI_MCA_routed",
    "OMPI_MCA_shmem_RUN",    "OMPI_MCA_mpi_oversub", "CUDA_VISIBLE_DEVICES"};

template <size_t N>
bool starts_with_any(std::string_view name, const std::array<std::string_view, N>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

}  // namespace

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

std::string launched_rank() {
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  return rank ? fmt::format("rank {}", rank) : "the rank";
}

std::string host_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char space[64] = {};
  if (readlink("/proc/self/ns/pid", space, sizeof space - 1) < 0) space[0] = '\0';
  return boot + " " + space + (boot.empty() ? host_name() : "");
}

void check_launch(int world_size) {
  if (world_size > 1) return;
  for (const char* variable : kWorldSizeVariables) {
    const char* value = std::getenv(variable);
    if (!value) continue;
    if (std::atoi(value) <= 1) return;
    fail(Exit::config,
         "[launch] {}={} announces {} ranks, but this process sees only itself: it was started by "
         "another MPI's launcher or without one; start it with Open MPI's `mpirun -np {} trainer "
         "...`, or unset {} for a single process",
         variable, value, value, value, variable);
  }
}

Cores cores() {
  Cores cores;
  cores.present = std::max(1L, sysconf(_SC_NPROCESSORS_ONLN));
  cpu_set_t set;
  cores.usable = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : cores.present;
  return cores;
}

std::string cores_advice(const Cores& cores, int ranks_on_host, int threads_per_rank) {
  const int wanted = threads_per_rank > 0 ? threads_per_rank : 1;
  if (cores.usable < cores.present && cores.usable <= wanted)
    return fmt::format(
        "each rank may use {} of {}, shared with its communication and prefetch threads: "
        "mpirun binds ranks to cores; start with `mpirun --bind-to none`",
        cores.usable, plural(cores.present, "core"));
  if (ranks_on_host * wanted > cores.present)
    return fmt::format("{} x {} on {}: use fewer ranks or threads", plural(ranks_on_host, "rank"),
                       plural(wanted, "thread"), plural(cores.present, "core"));
  return "";
}

std::vector<std::pair<std::string, std::string>> relevant_environment() {
  std::vector<std::pair<std::string, std::string>> found;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    const std::string_view name = text.substr(0, equals);
    if (equals == text.npos || !starts_with_any(name, kPrefixes)) continue;
    if (starts_with_any(name, kNotCompared)) continue;
    found.emplace_back(name, text.substr(equals + 1));
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace lockstep
