#include "calls.hpp"

namespace pollcore::testing {

const std::vector<NamedCall>& all_calls() {
    static const std::vector<NamedCall> all = [] {
        std::vector<NamedCall> calls;
        for (const auto& some : {runtime_calls(), queue_pair_calls(), receive_calls(), connection_calls(),
                                 memory_calls(), datagram_calls(), attached_calls()}) {
            calls.insert(calls.end(), some.begin(), some.end());
        }
        return calls;
    }();
    return all;
}

}  // namespace pollcore::testing
