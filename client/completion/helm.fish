# fish completion for HELM's programs. They are asked for their options themselves, so that this never lags behind.
# Files are offered where a file is meant: for an option's value, or a command's operand, that is called so.
function __helm_command
    set -l words (commandline -opc)
    test (path basename $words[1]) = helm-cli; or return
    set -l commands ($words[1] --print-options 2>/dev/null | string match -rg '^([a-z]+)\t')
    for word in $words[2..]
        contains -- $word $commands; and echo $word; and return
    end
end
function __helm_options
    set -l words (commandline -opc)
    set -l command (string match -v help (__helm_command))
    $words[1] $command --print-options 2>/dev/null | while read -d \t -l name value help
        if test "$name" = "$words[-1]"; and test "$value" != -
            string match -q -- '*|*' $value; and not string match -qr '[A-Z]' $value; and string split '|' $value
            return
        end
        printf '%s\t%s\n' $name $help
    end
end
function __helm_wants_file
    set -l words (commandline -opc)
    set -l command (__helm_command)
    set -l file '(^|[^A-Z/])(FILE|PATH|DIR)($|[^A-Z])'
    set -l rows ($words[1] (string match -v help $command) --print-options 2>/dev/null)
    for row in $rows
        set -l cells (string split \t $row)
        test "$cells[1]" = "$words[-1]"; and test "$cells[2]" != -; or continue
        string match -q -- '--*' $cells[1]; or continue
        string match -qr $file $cells[2]
        return
    end
    test (path basename $words[1]) = helm-cli; or return 0
    test -n "$command"; or return 1
    $words[1] --print-options 2>/dev/null | string match -rg "^$command\t([^\t]*)\t" | string match -qr $file
end
for program in helm-cli helmd helm-gateway helm-plan helm-profile helm-inspect helm-quantize helm-mkmodel helm-bench
    complete -c $program -a '(__helm_options)'
    complete -c $program -n 'not __helm_wants_file' -f
end
