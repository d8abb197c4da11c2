#include "program_check.hpp"

#include <fcntl.h>
#include <gelf.h>
#include <libelf.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <sstream>
#include <stdexcept>

#include <fmt/format.h>

#include "base/unique_fd.hpp"

namespace pollcore::run {
namespace {

// Libraries of rdma-core, which use the verbs on behalf of the program.
constexpr std::array<std::string_view, 6> kOfRdmaCore = {"libibverbs.so", "librdmacm.so", "libmlx5.so",
                                                         "libmlx4.so",    "libefa.so",    "libhns.so"};
// Functions of a provider, which look behind the structures of the verbs.
constexpr std::array<std::string_view, 7> kOfProviders = {"mlx5dv_", "mlx4dv_", "efadv_",  "hnsdv_",
                                                          "manadv_", "zrxdv_",  "irdmadv_"};
// Public functions of libibverbs about what no daemon can hand to another process, or about a provider's inside.
constexpr std::array<std::string_view, 8> kUnserved = {"ibv_import_device", "ibv_import_pd",      "ibv_import_mr",
                                                       "ibv_import_dm",     "ibv_unimport_pd",    "ibv_unimport_mr",
                                                       "ibv_unimport_dm",   "ibv_register_driver"};

bool is_of_verbs(std::string_view symbol) noexcept {
    const auto begins = [&](std::string_view prefix) { return symbol.starts_with(prefix); };
    return begins("ibv_") || begins("_ibv_") || begins("rdma_") ||
           std::any_of(kOfProviders.begin(), kOfProviders.end(), begins);
}

class Elf64 {
public:
    explicit Elf64(const std::filesystem::path& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
        if (!fd_.valid()) {
            throw std::runtime_error(fmt::format("{}: {}", path.string(), std::strerror(errno)));
        }
        (void)::elf_version(EV_CURRENT);
        elf_.reset(::elf_begin(fd_.get(), ELF_C_READ_MMAP, nullptr));
    }

    [[nodiscard]] bool valid() const noexcept { return elf_ != nullptr && ::elf_kind(elf_.get()) == ELF_K_ELF; }

    [[nodiscard]] bool has_segment(unsigned type) const noexcept {
        std::size_t count = 0;
        (void)::elf_getphdrnum(elf_.get(), &count);
        for (std::size_t i = 0; i < count; ++i) {
            GElf_Phdr segment;
            if (::gelf_getphdr(elf_.get(), static_cast<int>(i), &segment) != nullptr && segment.p_type == type) {
                return true;
            }
        }
        return false;
    }

    // Calls `take` with the name of each dynamic symbol that is imported or, with `defined`, exported.
    template <class Take>
    void each_symbol(bool defined, const Take& take) const {
        for (Elf_Scn* section = nullptr; (section = ::elf_nextscn(elf_.get(), section)) != nullptr;) {
            GElf_Shdr header;
            if (::gelf_getshdr(section, &header) == nullptr || header.sh_type != SHT_DYNSYM || header.sh_entsize == 0) {
                continue;
            }
            Elf_Data* const data = ::elf_getdata(section, nullptr);
            for (std::size_t i = 0; data != nullptr && i < header.sh_size / header.sh_entsize; ++i) {
                GElf_Sym symbol;
                if (::gelf_getsym(data, static_cast<int>(i), &symbol) != nullptr &&
                    (symbol.st_shndx != SHN_UNDEF) == defined) {
                    if (const char* name = ::elf_strptr(elf_.get(), header.sh_link, symbol.st_name); name != nullptr) {
                        take(std::string(name));
                    }
                }
            }
        }
    }

private:
    struct End {
        void operator()(Elf* elf) const noexcept { (void)::elf_end(elf); }
    };
    UniqueFd fd_;
    std::unique_ptr<Elf, End> elf_;
};

std::string output_of(const std::vector<std::string>& command) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) {
        throw std::runtime_error(fmt::format("pipe2: {}", std::strerror(errno)));
    }
    const UniqueFd reading(ends[0]);
    UniqueFd writing(ends[1]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, writing.get(), STDOUT_FILENO);
    std::vector<char*> arguments;
    for (const std::string& one : command) {
        arguments.push_back(const_cast<char*>(one.c_str()));
    }
    arguments.push_back(nullptr);
    pid_t child = 0;
    const int error = ::posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) {
        throw std::runtime_error(fmt::format("{}: {}", command.front(), std::strerror(error)));
    }
    writing.reset();
    std::string text;
    std::array<char, 4096> buffer;
    for (ssize_t got = 0; (got = ::read(reading.get(), buffer.data(), buffer.size())) > 0;) {
        text.append(buffer.data(), static_cast<std::size_t>(got));
    }
    int status = 0;
    (void)::waitpid(child, &status, 0);
    return text;
}

// The libraries that the loader would load. It runs no code of the program.
std::vector<std::filesystem::path> libraries_of(const std::filesystem::path& program) {
    std::vector<std::filesystem::path> found;
    std::istringstream lines(output_of({"ldd", std::filesystem::absolute(program).string()}));
    for (std::string line; std::getline(lines, line);) {
        const std::size_t arrow = line.find("=> /");
        if (arrow != std::string::npos) {
            const std::size_t begin = arrow + 3;
            found.emplace_back(line.substr(begin, line.find(" (", begin) - begin));
        }
    }
    return found;
}

bool is_of_rdma_core(const std::filesystem::path& library) {
    const std::string name = library.filename().string();
    return std::any_of(kOfRdmaCore.begin(), kOfRdmaCore.end(),
                       [&](std::string_view one) { return name.starts_with(one); });
}

}  // namespace

Fate fate_of(const std::string& symbol, const std::set<std::string>& served) noexcept {
    if (served.contains(symbol)) {
        return Fate::served;
    }
    const bool of_provider = std::any_of(kOfProviders.begin(), kOfProviders.end(),
                                         [&](std::string_view prefix) { return symbol.starts_with(prefix); });
    const bool unserved = std::find(kUnserved.begin(), kUnserved.end(), symbol) != kUnserved.end();
    // Programs ask by the first whether a device is the provider's, and take another way if it is not.
    const bool question = symbol.ends_with("_is_supported");
    return (of_provider && !question) || unserved ? Fate::impossible : Fate::passed_on;
}

Obstacle obstacle_of(const std::filesystem::path& path) {
    const Elf64 elf(path);
    if (!elf.valid()) {
        return Obstacle::no_elf;
    }
    if (!elf.has_segment(PT_DYNAMIC)) {
        return Obstacle::is_static;
    }
    struct stat status {};
    const bool readable = ::stat(path.c_str(), &status) == 0;
    // The loader ignores LD_PRELOAD of a program that has more rights than its user.
    if (readable && (status.st_mode & (S_ISUID | S_ISGID)) != 0) {
        return Obstacle::has_privileges;
    }
    return Obstacle::none;
}

std::set<std::string> exported_functions(const std::filesystem::path& library) {
    std::set<std::string> names;
    const Elf64 elf(library);
    if (elf.valid()) {
        elf.each_symbol(true, [&](std::string name) { names.insert(std::move(name)); });
    }
    return names;
}

ProgramCheck check_program(const std::filesystem::path& path, const std::set<std::string>& served) {
    ProgramCheck check{.obstacle = obstacle_of(path), .uses = {}};
    if (check.obstacle == Obstacle::no_elf || check.obstacle == Obstacle::is_static) {
        return check;
    }
    std::vector<std::filesystem::path> files = libraries_of(path);
    std::erase_if(files, is_of_rdma_core);
    files.insert(files.begin(), path);
    for (const std::filesystem::path& file : files) {
        const Elf64 elf(file);
        if (elf.valid()) {
            elf.each_symbol(false, [&](std::string symbol) {
                if (is_of_verbs(symbol)) {
                    const Fate fate = fate_of(symbol, served);
                    check.uses.push_back({std::move(symbol), file, fate});
                }
            });
        }
    }
    return check;
}

}  // namespace pollcore::run
