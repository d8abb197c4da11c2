// The calls of the public interface, each with what it needs and with what shows that it worked.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "failing_allocations.hpp"
#include "small_world.hpp"

namespace pollcore::testing {

/// One call, on a world of its own. The order is: prepare, make, make again if it failed, use.
class Call {
public:
    virtual ~Call() = default;
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    virtual void prepare(World& world) { (void)world; }
    /// Makes the call, in which an allocation fails.
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

// Each of these is defined in a file of its own.
[[nodiscard]] std::vector<NamedCall> runtime_calls();
[[nodiscard]] std::vector<NamedCall> queue_pair_calls();
[[nodiscard]] std::vector<NamedCall> receive_calls();
[[nodiscard]] std::vector<NamedCall> connection_calls();
[[nodiscard]] std::vector<NamedCall> memory_calls();
[[nodiscard]] std::vector<NamedCall> datagram_calls();
[[nodiscard]] std::vector<NamedCall> attached_calls();

[[nodiscard]] const std::vector<NamedCall>& all_calls();

}  // namespace pollcore::testing
