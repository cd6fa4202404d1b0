// Stands in for NVIDIA's <nccl.h>: the part that dist/nccl uses. ../nccl.cpp moves the bytes.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>

namespace cuda_on_cpu {
// How often each was called, for tests.
struct NcclSums {
  std::atomic<int> reduce_scatter = 0, reduce = 0, all_reduce = 0;
};
inline NcclSums nccl_sums;
}  // namespace cuda_on_cpu

struct ncclUniqueId {
  char internal[128];
};
using ncclComm_t = struct ncclComm*;
enum ncclResult_t { ncclSuccess = 0, ncclSystemError = 2, ncclInProgress = 7 };
enum ncclDataType_t { ncclUint8 = 1, ncclFloat32 = 7 };
enum ncclRedOp_t { ncclSum = 0 };
struct ncclConfig_t {
  int blocking;
};
#define NCCL_CONFIG_INITIALIZER \
  { 1 }

const char* ncclGetErrorString(ncclResult_t result);
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t, int root,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t,
                               ncclRedOp_t, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t, ncclRedOp_t,
                        int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t, ncclRedOp_t,
                           ncclComm_t comm, cudaStream_t stream);
