// What the parts of RandomProgram share: random_program.cc, random_objects.cc, random_states.cc, random_requests.cc and
// random_results.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include <infiniband/verbs.h>

namespace pollcore::test {

inline constexpr int kDirect = 0;
inline constexpr int kServed = 1;
inline constexpr std::size_t kPage = 4096;
inline constexpr std::size_t kAreas = 4;
inline constexpr std::size_t kAreaBytes = 16 * kPage;
inline constexpr std::size_t kMemory = kAreas * kAreaBytes;
inline constexpr std::uint32_t kQkeys[] = {0x1111, 0x2222};
inline constexpr std::uint32_t kNobody = 0xfff0f0;  // a number that no queue pair has
// On a busy machine a worker may not run for longer than this, so there are many retries.
inline constexpr std::uint8_t kTimeoutTwoMs = 9;
inline constexpr std::uint8_t kRetries = 7;
inline constexpr std::uint8_t kRnrTimers[] = {12, 14};  // 0.64 and 1.28 ms
inline constexpr std::uint32_t kGrh = 40;
inline constexpr std::size_t kLongest = 4200;  // of all messages, with a GRH

inline std::string name_of(int error) {
    return error == 0 ? "success" : strerrorname_np(error);
}

inline bool is_atomic(ibv_wr_opcode opcode) {
    return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}
inline bool is_rdma(ibv_wr_opcode opcode) {
    return opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM || opcode == IBV_WR_RDMA_READ;
}

}  // namespace pollcore::test
