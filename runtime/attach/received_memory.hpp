// Memory of an attached process that the daemon has mapped: the memory of a memory region, or the rings of a session.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <utility>

#include "attach/account.hpp"
#include "base/disposal.hpp"
#include "base/host_memory.hpp"

namespace pollcore {

struct ReceivedMemory {
    Account::Held bytes;  // declared first, so that it is given back after the unmapping
    HostMemory mapping;
};

/// When the last pointer to the memory is dropped, another thread unmaps the memory, and the caller does not wait.
/// Until the memory is unmapped, it counts as Thing::leaving_byte.
[[nodiscard]] inline std::shared_ptr<ReceivedMemory> make_received_memory(Account::Held bytes, HostMemory mapping) {
    const auto owner = std::make_shared<std::unique_ptr<ReceivedMemory>>(
        std::make_unique<ReceivedMemory>(ReceivedMemory{std::move(bytes), std::move(mapping)}));
    return {owner->get(), [end = std::function<void()>([owner] { owner->reset(); })](ReceivedMemory* memory) mutable {
                Account::Held leaving = memory->bytes.account().take(Thing::leaving_byte, memory->bytes.amount());
                memory->bytes = std::exchange(leaving, {});
                dispose(kMemoryDisposal, std::move(end));  // `end` is made in advance: no allocation here (D29)
            }};
}

/// Memory that came with a message.
struct Handed {
    std::shared_ptr<ReceivedMemory> memory;  ///< null: no descriptor came, or `failure` is set
    std::exception_ptr failure;              ///< why the memory could not be mapped
};

}  // namespace pollcore
