#include "sysfs.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <random>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/core.h>

#include "file.hpp"
#include "hca_fabric.hpp"
#include "refuse.hpp"

namespace mlx5_model {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kCounters[] = {"rnr_nak_retry_err", "out_of_buffer"};

constexpr std::string_view kPrefix = "mlx5-model-";

// SYSFS_PATH is set at once, because libibverbs reads it early. The directory is made when a library looks for devices.
// The process removes the directory when it exits; a forked child that has not called exec does not.
class Tree {
public:
    Tree();
    Tree(const Tree&) = delete;
    Tree& operator=(const Tree&) = delete;
    ~Tree() {
        if (made_ && ::getpid() == maker_) {
            std::error_code ignored;
            fs::remove_all(root_, ignored);
        }
    }
    void make();
    [[nodiscard]] fs::path counters(const DeviceFacts& device) const {
        return root_ / "class/infiniband" / device.name / "ports/1/hw_counters";
    }

private:
    const pid_t maker_ = ::getpid();  // declared before root_, whose name contains it
    fs::path root_;
    std::mutex lock_;
    bool made_ = false;
};

// Removes the trees of processes that were killed.
void remove_stale_trees() {
    std::error_code ignored;
    for (const fs::directory_entry& entry : fs::directory_iterator(fs::temp_directory_path(), ignored)) {
        const std::string name = entry.path().filename();
        int owner = 0;
        if (name.starts_with(kPrefix) && std::sscanf(name.c_str() + kPrefix.size(), "%d-", &owner) == 1 &&
            ::kill(owner, 0) != 0 && errno == ESRCH) {
            fs::remove_all(entry.path(), ignored);
        }
    }
}

void write(const fs::path& file, std::string_view text) {
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text << '\n';
}

std::string hexadecimal(const std::uint8_t* bytes, int pairs) {
    std::string text;
    for (int i = 0; i < pairs; ++i) {
        text += fmt::format("{}{:02x}{:02x}", i == 0 ? "" : ":", bytes[2 * i], bytes[2 * i + 1]);
    }
    return text;
}

Tree::Tree() : root_(fs::temp_directory_path() / fmt::format("{}{}-{:08x}", kPrefix, maker_, std::random_device{}())) {
    ::setenv("SYSFS_PATH", root_.c_str(), 1);
}

void Tree::make() {
    const std::lock_guard guard(lock_);
    if (std::exchange(made_, true)) {
        return;
    }
    remove_stale_trees();
    require(::mkdir(root_.c_str(), 0755) == 0, "cannot make the directory {}", root_.string());
    const fs::path verbs = root_ / "class/infiniband_verbs";
    write(verbs / "abi_version", "6");
    for (const DeviceFacts& device : devices()) {
        const fs::path uverbs = verbs / fs::path(device.file).filename();
        write(uverbs / "dev", fmt::format("231:{}", device.minor));
        write(uverbs / "ibdev", device.name);
        write(uverbs / "abi_version", "1");
        const fs::path ib = root_ / "class/infiniband" / device.name;
        const std::string guid = hexadecimal(reinterpret_cast<const std::uint8_t*>(&device.node_guid), 4);
        write(ib / "node_type", "1: CA");
        write(ib / "node_guid", guid);
        write(ib / "sys_image_guid", guid);
        write(ib / "fw_ver", "20.99.1000");
        // libibverbs chooses the provider by this file. These numbers are those of a ConnectX-6.
        write(ib / "device/modalias", "pci:v000015B3d0000101Bsv000015B3sd00000008bc02sc00i00");
        write(ib / "device/numa_node", "-1");
        const fs::path port = ib / "ports/1";
        const std::string gid = hexadecimal(device.gid.raw, 8);
        for (const std::string_view index : {"0", "1"}) {
            write(port / "gids" / index, gid);
            write(port / "gid_attrs/types" / index, index == "0" ? "IB/RoCE v1" : "RoCE v2");
            write(port / "gid_attrs/ndevs" / index, "lo");
        }
        write(port / "pkeys/0", "0xffff");
        write(port / "state", "4: ACTIVE");
        write(port / "link_layer", "Ethernet");
        for (const std::string_view counter : kCounters) {
            write(counters(device) / counter, "0");
        }
    }
    write(root_ / "class/misc/rdma_cm/abi_version", "4");
    write(root_ / "class/misc/rdma_cm/dev", "10:58");
}

Tree& tree() {
    static Tree one;
    return one;
}

__attribute__((constructor)) void name_tree() {
    (void)tree();
}

}  // namespace

void make_sysfs() {
    tree().make();
}

void set_counter(const DeviceFacts& device, std::string_view name, std::uint64_t value) {
    // One write, so that a concurrent reader sees either the old or the new number.
    const std::string text = fmt::format("{}\n", value);
    const int file = libc::open((tree().counters(device) / name).c_str(), O_WRONLY | O_CLOEXEC);
    if (file >= 0) {
        (void)libc::write(file, text.data(), text.size());
        (void)libc::close(file);
    }
}

}  // namespace mlx5_model
