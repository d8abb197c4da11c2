// The exception for an invariant that does not hold.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace pollcore::sim {

class Violation : public std::runtime_error {
public:
    /// `invariant` is the invariant's number in runtime/README.md and a word, such as "I1 conservation".
    Violation(std::string invariant, const std::string& text)
        : std::runtime_error(invariant + ": " + text), invariant_(std::move(invariant)) {}
    [[nodiscard]] const std::string& invariant() const noexcept { return invariant_; }

private:
    std::string invariant_;
};

}  // namespace pollcore::sim
