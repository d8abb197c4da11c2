// Calls of the public interface. Each has a preparation, and a use that shows whether the call worked.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "failing_allocations.hpp"
#include "small_world.hpp"

namespace pollcore::testing {

/// One call, with its own World. The test calls prepare(), then make(), then make() again if it failed, then use().
class Call {
public:
    virtual ~Call() = default;
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    virtual void prepare(World& world) { (void)world; }
    /// Makes the call. During the first make(), an allocation fails.
    virtual void make(World& world) = 0;
    /// Called after make() has succeeded.
    virtual void use(World& world) { (void)world; }

protected:
    Call() = default;
};

struct NamedCall {
    const char* name;
    std::unique_ptr<Call> (*begin)();
    bool sleeps = true;  ///< whether the worker sleeps when it has nothing to do
    Allocating whose = Allocating::callers;
};

template <class C, auto... arguments>
std::unique_ptr<Call> make_call() {
    return std::make_unique<C>(arguments...);
}

// Each of these functions is defined in its own file.
[[nodiscard]] std::vector<NamedCall> runtime_calls();
[[nodiscard]] std::vector<NamedCall> queue_pair_calls();
[[nodiscard]] std::vector<NamedCall> receive_calls();
[[nodiscard]] std::vector<NamedCall> connection_calls();
[[nodiscard]] std::vector<NamedCall> memory_calls();
[[nodiscard]] std::vector<NamedCall> datagram_calls();
[[nodiscard]] std::vector<NamedCall> attached_calls();

[[nodiscard]] const std::vector<NamedCall>& all_calls();

}  // namespace pollcore::testing
