// The opcode of a work request's completion.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "pollcore/completion.hpp"
#include "pollcore/work_request.hpp"

namespace pollcore {

/// The opcode of the completion, by the Opcode of a send-queue request.
inline constexpr CompletionOpcode kSendCompletions[] = {
    CompletionOpcode::rdma_write, CompletionOpcode::rdma_write, CompletionOpcode::send,
    CompletionOpcode::send,       CompletionOpcode::rdma_read,  CompletionOpcode::comp_swap,
    CompletionOpcode::fetch_add,  CompletionOpcode::local_inv,  CompletionOpcode::bind_mw,
    CompletionOpcode::send,
};
static_assert(std::size(kSendCompletions) == static_cast<std::size_t>(Opcode::send_with_inv) + 1);

/// The opcode of the completion of a request. `opcode` may be any byte.
[[nodiscard]] constexpr CompletionOpcode completion_opcode(Opcode opcode) noexcept {
    const auto value = static_cast<std::size_t>(opcode);
    return is_recv(opcode)                       ? CompletionOpcode::recv
           : value < std::size(kSendCompletions) ? kSendCompletions[value]
                                                 : CompletionOpcode::send;
}

}  // namespace pollcore
