// What a check says about the host: a list of findings.
//
// Thread safety: plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pollcore::doctor {

enum class Severity {
    ok,       ///< as it should be
    note,     ///< worth knowing, or it cannot be told
    warning,  ///< costs time or bandwidth
    fault,    ///< the configured runtime does not start, or does not work
};
/// "ok", "note", "warning" or "fault".
[[nodiscard]] std::string_view name_of(Severity severity) noexcept;

/// What a finding is about. A finding about the whole host has none of these.
struct About {
    std::string worker;                 ///< name of a configured worker; empty if no configuration names one
    std::optional<std::uint32_t> core;  ///< CPU number
    std::string device;                 ///< RDMA device, such as "mlx5_0"

    bool operator==(const About&) const = default;
};
/// For people, such as "worker0, CPU 3" or "host".
[[nodiscard]] std::string text_of(const About& about);

struct Cost {
    enum class Basis {
        none,      ///< it costs nothing, or nobody has measured it
        measured,  ///< here, by this run
        stated,    ///< by the source that the text names
    };
    std::string text{};
    Basis basis = Basis::none;

    [[nodiscard]] static Cost measured(std::string text) { return {std::move(text), Basis::measured}; }
    [[nodiscard]] static Cost stated(std::string text) { return {std::move(text), Basis::stated}; }
    [[nodiscard]] static Cost not_measured(std::string text) { return {std::move(text), Basis::none}; }
};

/// A command that mends something. polldoctor runs none.
struct Command {
    enum class When {
        now,       ///< a command line for a root shell; its effect ends with the next boot
        boot,      ///< a parameter of the kernel's command line
        firmware,  ///< a setting of the BIOS, of the device's firmware or of the hypervisor, in words
    };
    When when = When::now;
    std::string text;
};
/// "now", "boot" or "firmware".
[[nodiscard]] std::string_view name_of(Command::When when) noexcept;

struct Finding {
    std::string id{};  ///< of the check, such as "isolated-core"; it stays the same in later versions
    About about{};
    Severity severity = Severity::ok;
    /// False if what has to be known could not be read. `seen` says why.
    bool judged = true;
    /// False for a guess: what was seen may have another cause, or may not matter here.
    bool sure = true;
    std::string seen{};    ///< the value
    std::string source{};  ///< the files where it was read, or the call that told it
    Cost cost{};
    std::string mend{};  ///< in words
    std::vector<Command> commands{};
};

/// The text as one word of a shell's command line. Names of devices come from files that may say anything.
[[nodiscard]] std::string shell_word(std::string_view text);

/// The worst severity of all; ok if there are none.
[[nodiscard]] Severity worst_of(const std::vector<Finding>& findings) noexcept;

/// A finding that says why nothing could be judged. It is a note: what may not be read is not taken for good.
[[nodiscard]] Finding not_judged(About about, std::string why, std::string source);

}  // namespace pollcore::doctor
